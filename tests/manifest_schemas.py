"""What Kubernetes, JobSet and Kubeflow Trainer take, by schemas of their own, without a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import kubernetes_validate
from kubeflow_trainer_api import models

KUBERNETES = "1.37"  # version of the schemas
_MODELS = {  # of the objects that Kubernetes itself does not know
    "JobSet": models.JobsetV1alpha2JobSet,
    "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
    "TrainJob": models.TrainerV1alpha1TrainJob,
}


def assert_valid(manifests: Iterable[Mapping[str, Any]]) -> None:
    """Each manifest has the keys and types of its schema and no others, and so have the jobs that it would make."""
    for manifest in manifests:
        model = _MODELS.get(manifest["kind"])
        if model is None:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
            continue
        assert model.from_dict(manifest).to_dict() == manifest  # which lacks what the model does not know
        for job in jobs_of(manifest):
            kubernetes_validate.validate(job, KUBERNETES, strict=True)


def jobs_of(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The jobs of a JobSet, or of the one in a TrainingRuntime, as manifests of their own."""
    spec = manifest["spec"]
    job_set = spec["template"]["spec"] if manifest["kind"] == "TrainingRuntime" else spec
    return [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {**job["template"].get("metadata", {}), "name": job["name"]},
            "spec": job["template"]["spec"],
        }
        for job in job_set.get("replicatedJobs", ())
    ]
