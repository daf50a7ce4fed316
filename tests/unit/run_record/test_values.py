import math

import pytest

from dynamix_ps.messages import WINDOW, Flow, LinkView, ServerView, SystemSample, WindowRecord
from dynamix_ps.run_record.model import Mean, by_worker
from dynamix_ps.run_record.traffic import TrafficLedger, WorkerTraffic
from dynamix_ps.run_record.values import filled, known_sum, ratio


class TestFilled:
    def test_null_is_nan_and_absent_is_the_default(self) -> None:
        link = filled(LinkView, {"rank": 2, "push_rtt_s": None, "pull_rtt_s": 1, "slow": "link", "unheard_of": 3})
        assert (link.rank, link.pull_rtt_s, link.slow, link.source) == (2, 1.0, "link", "none")
        assert math.isnan(link.push_rtt_s) and math.isnan(link.age_s)

    def test_null_for_a_value_without_default(self) -> None:
        flow = filled(Flow, {"local": "a", "remote": "b", "bytes_out": None, "bytes_in": 1, "retransmits": None})
        assert math.isnan(flow.bytes_out) and flow.bytes_in == 1.0

    def test_nested(self) -> None:
        server = filled(ServerView, {"name": "server-0", "system": {"cpu_ratio": 0.5, "throttled": None}})
        assert server.system.cpu_ratio == 0.5
        assert math.isnan(server.system.throttled) and isinstance(server.system, SystemSample)

    def test_a_window_of_an_earlier_release_lacks_values_and_they_are_unknown(self) -> None:
        counts = {name: 1 for name, field in WINDOW.items() if field.kind is int}
        line = counts | {"duration_s": 2.0, "compute_s": 1.0, "input_s": 0.0, "loss": 0.5, "cpu_ratio": 0.75}
        record = filled(WindowRecord, line)
        assert (record.rank, record.loss, record.cpu_ratio) == (1, 0.5, 0.75)
        absent = {name for name, field in WINDOW.items() if field.kind is float} - line.keys()
        assert len(absent) > 20 and all(math.isnan(getattr(record, name)) for name in absent)

    @pytest.mark.parametrize("line", [{}, {"rank": 1, "push_rtt_s": "fast"}, {"rank": 1, "age_s": [1]}])
    def test_wrong_values_are_refused(self, line: dict[str, object]) -> None:
        with pytest.raises((TypeError, ValueError)):
            filled(LinkView, line)


def test_sums_ratios_and_means_know_what_is_unknown() -> None:
    assert known_sum((1.0, math.nan, 2.0)) == 3.0
    assert math.isnan(known_sum((math.nan, math.nan)))
    assert ratio(1.0, 4.0) == 0.25
    assert all(math.isnan(value) for value in (ratio(1.0, 0.0), ratio(math.nan, 1.0), ratio(1.0, math.nan)))
    mean = Mean()
    assert math.isnan(mean.value)
    mean.add(0.2, 3.0)
    mean.add(math.nan, 100.0)
    mean.add(0.6, 1.0)
    assert mean.value == pytest.approx(0.3)


def test_who_has_which() -> None:
    assert by_worker({1: "ebpf", 0: "ebpf"}) == "ebpf"
    assert by_worker({2: "ebpf", 1: "sockdiag", 0: "ebpf"}) == "ebpf (worker 0, 2), sockdiag (worker 1)"
    assert (by_worker({}), by_worker({0: ""})) == ("none", "none")


class TestTraffic:
    WORKER = Flow("10.0.0.1:5", "10.0.0.9:1", 100.0, 50.0, 2.0)
    SERVER = Flow("10.0.0.9:1", "10.0.0.1:5", 50.0, 100.0, 7.0)

    def test_both_directions_and_the_servers_side(self) -> None:
        ledger = TrafficLedger()
        ledger.add("worker-0", 0, [self.WORKER])
        ledger.add("server-0", -1, [self.SERVER, Flow("10.0.0.9:1", "10.0.0.2:5", 1.0, 1.0, 99.0)])
        assert ledger.of_worker(0) == WorkerTraffic(100.0, 50.0, 2.0, 7.0)

    def test_the_side_that_reported_last_knows_most(self) -> None:
        ledger = TrafficLedger()
        ledger.add("server-0", -1, [Flow("10.0.0.9:1", "10.0.0.1:5", 60.0, 130.0, 7.0)])
        ledger.add("worker-0", 0, [self.WORKER])
        assert ledger.of_worker(0) == WorkerTraffic(130.0, 60.0, 2.0, 7.0)

    def test_a_closed_connection_still_counts_and_counters_never_fall(self) -> None:
        ledger = TrafficLedger()
        ledger.add("worker-0", 0, [self.WORKER])
        ledger.add("worker-0", 0, [Flow("10.0.0.1:6", "10.0.0.9:1", 10.0, 5.0, 1.0)])
        ledger.add("worker-0", 0, [Flow("10.0.0.1:6", "10.0.0.9:1", 4.0, math.nan, 1.0)])
        total = ledger.of_worker(0)
        assert (total.pushed_bytes, total.pulled_bytes, total.push_retransmits) == (110.0, 55.0, 3.0)

    def test_a_whole_namespace_is_nobodys(self) -> None:
        ledger = TrafficLedger()
        ledger.add("worker-0", 0, [Flow("*", "*", 1e9, 1e9, 5.0)])
        assert math.isnan(ledger.of_worker(0).pushed_bytes)

    def test_unknown_worker(self) -> None:
        assert math.isnan(TrafficLedger().of_worker(3).pushed_bytes)
