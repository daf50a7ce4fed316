"""What happens to the link of a host of the soak."""

from __future__ import annotations

import time

from benchmarks.studies.membership.soak_site import Event, Site
from benchmarks.testbed.link import Link
from benchmarks.testbed.relay import Relay

LOSS = (0.01, 0.05)
MBIT_PER_S, QUEUE_S = (2.0, 8.0), 0.2
HELD_S = (0.02, 0.15)
FLAP_DOWN_S, FLAP_UP_S = 0.2, 0.6


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
    """To be called often."""
    down = (time.monotonic() - event.at_s) % (FLAP_DOWN_S + FLAP_UP_S) < FLAP_DOWN_S
    (silence if down else heal)(site, event)


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
