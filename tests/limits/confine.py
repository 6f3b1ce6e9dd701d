"""Runs a program with something taken away: confine.py [SWITCH VALUE]... -- PROGRAM [ARGUMENT]...

  --deny NUMBERS   these system calls fail with EPERM, as in an old container; "425-427,441"
  --cpus LIST      the affinity mask, "0,2"
  --nofile N       RLIMIT_NOFILE, soft and hard
  --memlock BYTES  RLIMIT_MEMLOCK, soft and hard
  --user ID        user and group of that number, without supplementary groups and capabilities

Switches work in their order. Linux only; system calls are compared by number alone, so a number means
the same call on x86-64 and aarch64 from 424 on.
"""

import ctypes
import errno
import os
import resource
import struct
import sys

PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2

# Classic BPF: load a word of the call's description, compare, return.
LOAD_WORD, JUMP_ABOVE, JUMP_FROM, RETURN = 0x20, 0x25, 0x35, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000


def instruction(code, value, if_true=0, if_false=0):
    return struct.pack("=HBBI", code, if_true, if_false, value)


def deny(numbers):
    """Installs a filter, and makes each denied call once to see that it is refused."""
    program = [instruction(LOAD_WORD, 0)]
    ranges = []
    for part in numbers.split(","):
        first, _, last = part.partition("-")
        ranges.append((int(first), int(last or first)))
    for first, last in ranges:
        program.append(instruction(JUMP_ABOVE, last, if_true=2))
        program.append(instruction(JUMP_FROM, first, if_false=1))
        program.append(instruction(RETURN, FAIL | errno.EPERM))
    program.append(instruction(RETURN, ALLOW))

    code = ctypes.create_string_buffer(b"".join(program))
    header = struct.pack("@HP", len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)

    def control(option, *values):
        if libc.prctl(option, *(ctypes.c_ulong(value) for value in values)) != 0:
            raise OSError(ctypes.get_errno(), "prctl")

    control(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    buffer = ctypes.create_string_buffer(header)
    control(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(buffer), 0, 0)
    for first, last in ranges:
        for number in range(first, last + 1):
            libc.syscall(ctypes.c_long(number), -1, 0, 0, 0, 0, 0)
            assert ctypes.get_errno() == errno.EPERM, f"call {number} is not refused"


def both(limit, value):
    resource.setrlimit(limit, (int(value), int(value)))


def become(user):
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


SWITCHES = {
    "--deny": deny,
    "--cpus": lambda cpus: os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")}),
    "--nofile": lambda value: both(resource.RLIMIT_NOFILE, value),
    "--memlock": lambda value: both(resource.RLIMIT_MEMLOCK, value),
    "--user": lambda value: become(int(value)),
}


def main(arguments):
    while arguments[0] != "--":
        SWITCHES[arguments[0]](arguments[1])
        arguments = arguments[2:]
    os.execv(arguments[1], arguments[1:])


main(sys.argv[1:])
