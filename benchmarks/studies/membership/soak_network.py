"""What happens to the link of a host of the soak."""

from __future__ import annotations

import os
import shlex
import signal

from benchmarks.studies.membership.soak_site import Event, Site
from benchmarks.testbed.link import Link
from benchmarks.testbed.names import SWITCH
from benchmarks.testbed.relay import Relay

LOSS = (0.01, 0.05)
MBIT_PER_S, QUEUE_S = (2.0, 8.0), 0.2
HELD_S = (0.02, 0.15)
FLAP_S, FLAP_EVERY_S = 0.1, (0.4, 1.2)


def unplug(site: Site, event: Event) -> None:
    site.bed.unplug(event.host)


def plug(site: Site, event: Event) -> None:
    site.bed.plug(event.host)


def mute(site: Site, event: Event) -> None:
    site.bed.set_link(event.host, Link(up_loss=1.0))


def deafen(site: Site, event: Event) -> None:
    site.bed.set_link(event.host, Link(down_loss=1.0))


def lose(site: Site, event: Event) -> None:
    share = _between(LOSS, event.strength)
    site.bed.set_link(event.host, Link(up_loss=share, down_loss=share))


def narrow(site: Site, event: Event) -> None:
    rate = 1e6 * _between(MBIT_PER_S, 1.0 - event.strength)
    site.bed.set_link(event.host, Link(up_bits_per_s=rate, down_bits_per_s=rate, queue_s=QUEUE_S))


def flap(site: Site, event: Event) -> None:
    """The link goes for less than TCP waits at least, again and again, whatever else this process does meanwhile."""
    there, gone = (_filters(site, event, loss) for loss in (0.0, 1.0))
    script = f"while :; do {gone}; sleep {FLAP_S}; {there}; sleep {_between(FLAP_EVERY_S, event.strength):.2f}; done"
    site.flapping[event.host] = site.bed.popen(SWITCH, ["sh", "-c", script], start_new_session=True)


def steady(site: Site, event: Event) -> None:
    process = site.flapping.pop(event.host)
    os.killpg(process.pid, signal.SIGKILL)  # and the command that it has started
    process.wait()
    heal(site, event)


def _filters(site: Site, event: Event, loss: float) -> str:
    """Commands for the switch."""
    commands = (site.bed.loss_command(event.host, side, loss) for side in ("ingress", "egress"))
    return "; ".join(map(shlex.join, commands))


def silence(site: Site, event: Event) -> None:
    """Nothing gets through, and its interface does not notice, as it does where the cable is pulled."""
    site.bed.set_link(event.host, Link(up_loss=1.0, down_loss=1.0))


def hold(site: Site, event: Event) -> None:
    """What it sends arrives later."""
    site.relays[event.host] = Relay(site.bed, event.host, _between(HELD_S, event.strength))


def double(site: Site, event: Event) -> None:
    """What it sends arrives twice."""
    site.relays[event.host] = Relay(site.bed, event.host, 0.0)


def release(site: Site, event: Event) -> None:
    site.relays.pop(event.host).close()


def heal(site: Site, event: Event) -> None:
    site.bed.set_link(event.host, Link())


def _between(bounds: tuple[float, float], share: float) -> float:
    return bounds[0] + share * (bounds[1] - bounds[0])
