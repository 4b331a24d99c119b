"""The hub and its members, in one process and over real sockets."""

import contextlib
import random
import socket
import threading
import time

import pytest

from vit_jax.errors import HostsError
from vit_jax.parallel.channel import Ending, Member
from vit_jax.parallel.hub import Hub

# Nothing here takes long; where a time must pass, it is said.
LONG_S = 300.0


class Hall:
    """A hub and what its members were told."""

    def __init__(self, opened, count, *, start_timeout_s=LONG_S, peer_timeout_s=LONG_S):
        listener = socket.create_server(("127.0.0.1", 0))
        self.address, self.count, self.peer_timeout_s = (
            listener.getsockname(),
            count,
            peer_timeout_s,
        )
        self.endings, self.opened = {}, opened
        timeouts = {"start_timeout_s": start_timeout_s, "peer_timeout_s": peer_timeout_s}
        self.hub = Hub(listener, count, **timeouts)
        self.hub.start()
        opened.append(self.hub)

    def connect(self):
        connection = socket.create_connection(self.address)
        self.opened.append(connection)
        return connection

    def member(self, process, count=None):
        connection = self.connect()
        member = Member(
            connection, process, count or self.count, name=f"host{process}",
            peer_timeout_s=self.peer_timeout_s, hub_name="host0",
            on_end=lambda ending: self.endings.__setitem__(process, ending),
        )  # fmt: skip
        return member, connection

    def members(self):
        return [self.member(process)[0] for process in range(self.count)]


@pytest.fixture
def hall():
    """Makes halls, and ends what is left of them."""
    opened = []
    yield lambda *args, **kwargs: Hall(opened, *args, **kwargs)
    for end in opened[::-1]:
        if isinstance(end, socket.socket):
            with contextlib.suppress(OSError):  # Closed already.
                end.shutdown(socket.SHUT_RDWR)
    for end in opened:
        if isinstance(end, Hub):
            end.join(LONG_S)
        else:
            end.close()


def together(*actions):
    """Runs all at once and returns what they return, or raise."""
    results = [None] * len(actions)

    def act(index):
        try:
            results[index] = actions[index]()
        except HostsError as error:
            results[index] = error

    threads = [threading.Thread(target=act, args=(i,)) for i in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
        assert not thread.is_alive()
    return results


def test_a_meeting_gives_everybody_all_values_in_order(hall):
    members = hall(3).members()
    for name in ("first", "second", "first"):
        values = [{"process": i, "name": name} for i in range(3)]
        found = together(
            *[lambda m=m, v=v: m.gather(name, v, LONG_S) for m, v in zip(members, values)]  # noqa: B023, B905
        )
        assert found == [values] * 3


def test_who_does_not_come_to_a_meeting_is_named(hall):
    members = hall(3).members()
    met = together(*[lambda m=m: m.gather("save of step 7", None, 0.5) for m in members[:2]])
    for error in met:
        assert str(error).startswith(
            "process 2 (host2) did not come to 'save of step 7' within 0.5 s"
        )
    assert members[2].wait_for_end(LONG_S).code == 76


def test_who_does_not_come_at_all_is_named(hall):
    room = hall(5, start_timeout_s=1.0)
    members = [room.member(process)[0] for process in (0, 3)]
    for member in members:
        ending = member.wait_for_end(LONG_S)
        assert ending.code == 76
        assert ending.line.startswith(
            "processes 1, 2, 4 did not come within 1 s, only 0 (host0), 3 (host3) did"
        )


def test_a_process_that_dies_is_missed_at_once(hall):
    room = hall(3)
    members, connections = zip(*[room.member(process) for process in range(3)], strict=True)
    together(*[lambda m=m: m.gather("start", None, LONG_S) for m in members])
    connections[1].shutdown(socket.SHUT_RDWR)
    for process in (0, 2):
        ending = members[process].wait_for_end(LONG_S)
        assert ending.line.startswith("process 1 (host1) was killed or crashed; ")
        assert ending.code == 76
        room.hub.join(LONG_S)
        assert room.endings[process] == ending


def test_the_death_of_process_0_is_missed_by_all(hall):
    room = hall(2)
    members = room.members()
    together(*[lambda m=m: m.gather("start", None, LONG_S) for m in members])
    for peer in list(room.hub._peers):
        # The hub may have seen the first one end and closed the others.
        with contextlib.suppress(OSError):
            peer.socket.shutdown(socket.SHUT_RDWR)
    ending = members[1].wait_for_end(LONG_S)
    assert ending.line.startswith("process 0 (host0) was killed or crashed; ")


def test_a_machine_that_falls_silent_is_missed_after_the_time_out(hall):
    room = hall(2, peer_timeout_s=6.0)
    first, _ = room.member(0)
    silent = room.connect()
    silent.sendall(b'{"hello": 1, "count": 2, "name": "host1"}\n')
    ending = first.wait_for_end(LONG_S)
    assert ending.line.startswith("process 1 (host1) has not been heard of for 6 s; ")
    assert ending.code == 76


def test_an_error_of_one_is_told_to_all_with_its_exit_code(hall):
    room = hall(3)
    members = room.members()
    together(*[lambda m=m: m.gather("start", None, LONG_S) for m in members])
    members[2].leave(2, "no such dataset")
    for process in (0, 1):
        ending = members[process].wait_for_end(LONG_S)
        assert ending == Ending("process 2 (host2) stopped: no such dataset", 2)
    room.hub.join(LONG_S)
    assert set(room.endings) == {0, 1}


def test_who_leaves_in_good_order_is_not_missed(hall):
    room = hall(2)
    members = room.members()
    together(*[lambda m=m: m.gather("end", None, LONG_S) for m in members])
    for member in members:
        member.leave(0)
    room.hub.join(LONG_S)
    assert not room.hub.is_alive()
    assert room.endings == {}


@pytest.mark.parametrize(
    ("process", "count", "line"),
    [
        (1, 4, "process 1 (host1) was started as one of 4 processes, process 0 as one of 3"),
        (0, 3, "two processes are number 0 (host0 and host0)"),
    ],
)
def test_processes_that_were_started_wrongly_are_told(hall, process, count, line):
    room = hall(3)
    first, _ = room.member(0)
    wrong, _ = room.member(process, count)
    for member in (first, wrong):
        ending = member.wait_for_end(LONG_S)
        assert ending.line.startswith(line)
        assert ending.code == 2


def test_a_stray_client_does_not_disturb(hall):
    room = hall(2)
    stray = room.connect()
    stray.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert stray.recv(10) == b""
    members = room.members()
    assert together(*[lambda m=m: m.gather("start", 1, LONG_S) for m in members]) == [[1, 1]] * 2


@pytest.mark.parametrize("seed", range(5))
def test_all_stop_at_one_moment_that_none_has_passed(hall, seed):
    """Each counts to where it is, one asks, all count on: the answer turns True at one count."""
    random_ = random.Random(seed)
    members = hall(4).members()
    passed = [random_.randrange(20) for _ in members]
    for member, ticks in zip(members, passed, strict=True):
        assert not any(member.tick(stop=False) for _ in range(ticks))
    asks = random_.randrange(4)

    def run_on(process):
        ticks = passed[process]
        while True:
            ticks += 1
            time.sleep(0.001)  # A step.
            if members[process].tick(stop=process == asks):
                return ticks

    stops = together(*[lambda p=p: run_on(p) for p in range(4)])
    # The one that asks has counted once more when it asks; the others may have gone on.
    assert len(set(stops)) == 1
    assert stops[0] > max(passed)
    assert all(member.tick(stop=False) for member in members)
