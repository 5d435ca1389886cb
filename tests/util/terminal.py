"""Runs a program on a pseudo-terminal: types steps, waits for texts, prints the transcript, exits 1 on a timeout.

    terminal.py SCRIPT PROGRAM ARGS...

SCRIPT is a JSON list: {"wait": TEXT} until TEXT appears after the last wait, {"send": TEXT}, {"exit": STATUS}."""
import json
import os
import pty
import select
import sys
import time

LIMIT = 60.0


def read_until(fd, seen, start, text):
    end = time.time() + LIMIT
    while time.time() < end:
        at = seen.find(text, start)
        if at >= 0:
            return at + len(text)
        if select.select([fd], [], [], 0.2)[0]:
            try:
                data = os.read(fd, 65536)
            except OSError:
                data = b""
            if not data:
                break
            seen += data
    return -1


def main():
    pid, fd = pty.fork()
    if pid == 0:
        os.execvp(sys.argv[2], sys.argv[2:])
    seen, at = bytearray(), 0
    for step in json.loads(sys.argv[1]):
        if "send" in step:
            os.write(fd, step["send"].encode())
        elif "wait" in step:
            at = read_until(fd, seen, at, step["wait"].encode())
            if at < 0:
                print(seen.decode(errors="replace"))
                print(f"terminal.py: '{step['wait']}' did not appear")
                os.kill(pid, 9)
                return 1
        else:
            read_until(fd, seen, len(seen), b"\0 never")
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if status != step["exit"]:
                print(f"terminal.py: exit status {status}, expected {step['exit']}")
                return 1
    print(seen.decode(errors="replace"))
    return 0


sys.exit(main())
