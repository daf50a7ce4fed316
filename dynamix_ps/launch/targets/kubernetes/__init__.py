"""A Kubernetes job: its pods as hosts, and the manifests of `dynamix k8s`.

The launcher runs `tls_command`, which connects to the `listening_agent` of a pod; both pass bytes on by `tls_relay`.
`job_secret` has their token and certificate. `pods` and `pod_template` say what the manifests consist of.
"""
