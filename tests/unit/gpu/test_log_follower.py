"""Logs followed through real files, a real FIFO, and the kernel's own log where it may be read."""

import os

import pytest

from sidecar.gpu.kmsg import LogFollower
from sidecar.gpu.xid import parse_line


def follow(path):
    follower = LogFollower(str(path))
    follower.open()
    return follower


def test_a_file_is_read_from_its_end_on(tmp_path):
    path = tmp_path / "kern.log"
    path.write_text("old\n")
    follower = follow(path)
    assert follower.poll().lines == ()
    with path.open("a") as file:
        file.write("one\ntw")
        file.flush()
        assert follower.poll().lines == ("one",)
        file.write("o\n")
    assert follower.poll().lines == ("two",)
    follower.close()


def test_a_rotated_file_is_followed(tmp_path):
    path = tmp_path / "kern.log"
    path.write_text("")
    follower = follow(path)
    with path.open("a") as file:
        file.write("last of the old\n")
    path.rename(tmp_path / "kern.log.1")
    assert follower.poll().lines == ("last of the old",)
    path.write_text("first of the new\n")
    lines = follower.poll().lines + follower.poll().lines
    assert lines == ("first of the new",)
    follower.close()


def test_a_cut_file_is_read_from_its_start(tmp_path):
    path = tmp_path / "kern.log"
    path.write_text("a long line that is gone\n")
    follower = follow(path)
    path.write_text("new\n")
    assert follower.poll().lines == ("new",)
    follower.close()


def test_a_fifo_and_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    follower = follow(path)
    writer = os.open(path, os.O_WRONLY)
    os.write(writer, b"3,1,99,-;NVRM: Xid (PCI:0000:05:00): 79, x\n SUBSYSTEM=pci\n\xff\xfe\n")
    lines = follower.poll().lines
    assert len(lines) == 3
    assert parse_line(lines[0]).code == 79
    os.close(writer)
    assert follower.poll().lines == ()
    follower.close()


def test_a_poll_is_bounded_and_says_that_there_is_more(tmp_path):
    path = tmp_path / "kern.log"
    path.write_text("")
    follower = LogFollower(str(path), max_reads=2)
    follower.open()
    path.write_text("x" * 99 + "\n")
    with path.open("a") as file:
        file.write(("y" * 99 + "\n") * 5000)
    seen, polls = 0, 0
    more = True
    while more and polls < 50:
        poll = follower.poll()
        seen, polls, more = seen + len(poll.lines), polls + 1, poll.more
    assert seen == 5001
    assert polls > 1
    follower.close()


def test_a_line_without_end_does_not_fill_the_memory(tmp_path):
    path = tmp_path / "kern.log"
    path.write_text("")
    follower = follow(path)
    with path.open("a") as file:
        file.write("z" * 1_000_000 + "\nnext\n")
    assert follower.poll().lines[-1] == "next"
    assert len(follower._rest) <= 64 * 1024
    follower.close()


def test_a_missing_log_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        LogFollower(str(tmp_path / "none")).open()


def test_the_kernels_own_log():
    follower = LogFollower("/dev/kmsg")
    try:
        follower.open()
    except OSError as error:
        pytest.skip(f"/dev/kmsg: {error.strerror}")
    poll = follower.poll()
    assert poll.lines
    assert all(line[:1] in "0123456789 " for line in poll.lines)
    for line in poll.lines:
        parse_line(line)
    follower.close()
