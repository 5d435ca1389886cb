"""House rules that a program can check (run by tests/rules.sh). Prints `file:line: rule`; exits 1 if there was any."""
import os
import re
import subprocess
import sys

MAX_FILE, MAX_FUNCTION, MAX_LINE, MAX_SETTINGS, MAX_BYTES = 700, 100, 120, 12, 45_000_000
CODE = (".c", ".h", ".def", ".cu", ".cuh", ".py", ".sh", ".js", ".css")

# Which headers a room may include. "x/" is a whole room, otherwise one header. A room always sees itself.
ALLOWED = {
    "base": ["ds4_err.h"],
    "file": ["base/"],
    "text": ["file/", "base/"],
    "sample": ["base/"],
    "backend": ["backend/backend.h", "backend/plan.h", "backend/cpu/cpu_open.h", "backend/cuda/cuda_open.h", "base/"],
    "backend/cpu": ["backend/backend.h", "file/quant.h", "file/synth.h", "base/"],
    "backend/cuda": ["backend/backend.h", "backend/plan.h", "file/quant.h", "file/synth.h", "base/"],
    "model": ["backend/backend.h", "backend/plan.h", "file/", "base/"],
    "session": ["model/", "backend/backend.h", "base/"],
    "spec": ["session/", "sample/", "model/", "backend/backend.h", "backend/plan.h", "file/quant.h", "base/"],
    "engine": ["ds4.h", "text/", "spec/", "session/", "sample/", "model/", "backend/backend.h", "file/", "base/"],
    "json": ["text/", "base/"],
    "convert": ["json/", "file/", "base/"],
    "server": ["ds4.h", "json/", "text/", "base/"],
    "app": ["ds4.h", "convert/", "json/", "text/", "file/", "base/"],
}
OWN_MIXED = {"backend"}  # rooms with inner rooms: seeing itself is spelled out above

# Mutable variables that are allowed: (source file, symbol).
MUTABLE = {("src/app/cli_signal.c", "interrupted")}

# Hosts that the repository may name: public homes of things it refers to. Anything else may be somebody's own machine.
HOSTS = re.compile(
    r"(^|\.)(github\.com|githubusercontent\.com|huggingface\.co|arxiv\.org|debian\.org|ubuntu\.com|gnu\.org|"
    r"unicode\.org|sqlite\.org|lua\.org|musl-libc\.org|python\.org|pcre\.org|gutenberg\.org|rfc-editor\.org|"
    r"w3\.org|json-schema\.org|opensource\.org|spdx\.org|creativecommons\.org|nvidia\.com|deepseek\.com|"
    r"cmocka\.org|digip\.org|example\.(com|org))$"
    r"|^(localhost|127\.0\.0\.1|\[::1\]|git-lfs)$")
MACHINE = re.compile(r"(?<![\w.$}])(?<!\+ \")/(work|root|home/[a-z]\w*|Users/\w+|mnt/\w+|tmp/conv)(/|\b)")
URL = re.compile(r"\b(?:https?|ssh|git|ftp)://(?:[^\s/@]*@)?([A-Za-z0-9.-]+|\[[0-9a-f:]+\])")
REGISTRY = re.compile(r"(index[-_]url|extra-index|--registry|GOPROXY|trusted-host|cargo.registries)", re.I)
TEXT_DATA = ("mini/topics.txt",)  # words of the training data, not of the repository

found = []


def bad(path, line, text):
    found.append(f"{path}:{line}: {text}")


def git_list(*flags):
    out = subprocess.run(["git", "ls-files", "-z", *flags], capture_output=True, check=True).stdout
    return [p for p in out.decode().split("\0") if p and os.path.isfile(p)]


def all_files():
    """Tracked files and new ones that git would not ignore; every file if this is no checkout."""
    try:
        return git_list("-co", "--exclude-standard"), git_list("-c")
    except (OSError, subprocess.CalledProcessError):
        skip = {"build", "work", "__pycache__", ".git"}
        names = []
        for top, dirs, files in os.walk("."):
            dirs[:] = [d for d in dirs if d not in skip]
            names += [os.path.relpath(os.path.join(top, f)) for f in files]
        return names, names


def read_text(path):
    with open(path, "rb") as f:
        data = f.read()
    if b"\0" in data[:4096]:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


# Comments, strings and character constants, newlines inside them kept.
TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.M)


def blank(match):
    return "\n" * match.group(0).count("\n") or " "


def check_functions(path, text):
    bare = DIRECTIVE.sub(blank, TOKEN.sub(blank, text))
    depth, head_line, head, line, is_function = 0, 0, "", 1, False
    for ch in bare:
        if ch == "\n":
            line += 1
        if depth == 0:
            if ch in ";}":
                head = ""
            elif ch == "{":
                if re.match(r"\s*extern\s*$", head):
                    head = ""
                    continue
                is_function = "(" in head and "=" not in head
                depth = 1
            else:
                if not head.strip() and not ch.isspace():
                    head_line = line
                head += ch
        elif ch == "{":
            depth += 1
        elif ch == "}":
            depth -= 1
            if depth == 0:
                length = line - head_line + 1
                if is_function and length > MAX_FUNCTION:
                    name = re.findall(r"(\w+)\s*\(", head)
                    what = name[0] if name else "?"
                    bad(path, head_line, f"function {what} has {length} lines, at most {MAX_FUNCTION}")
                head = ""


def room_of(path):
    parts = path.split("/")
    return "/".join(parts[1:-1]) if parts[0] == "src" else None


def include_ok(path, name):
    room = room_of(path)
    if path == "include/ds4.h":
        return name == "ds4_err.h"
    if room not in ALLOWED:
        return None
    if room not in OWN_MIXED and name.startswith(room + "/"):
        return True
    return any(name == a or (a.endswith("/") and name.startswith(a)) for a in ALLOWED[room])


def check_c_line(path, no, line):
    m = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
    if m and m.group(1).endswith((".c", ".cu")):
        bad(path, no, f"includes {m.group(1)}: sources are compiled, never included")
    if m and path.startswith(("src/", "include/")):
        ok = include_ok(path, m.group(1))
        if ok is None:
            bad(path, no, f"room {room_of(path)} has no row in the table of tests/rules.py")
        elif not ok:
            bad(path, no, f'"{m.group(1)}" may not be included from {room_of(path) or "the public header"}')
    if path.startswith("src/") and path != "src/base/cfg.c" and re.search(r"\b(secure_)?getenv\s*\(|\benviron\b", line):
        bad(path, no, "the environment is read in src/base/cfg.c only")
    if re.match(r"\s*#\s*(if|ifdef|ifndef|elif)\b.*(CUDA|NVCC)", line) and path.startswith("src/") \
            and path != "src/backend/select.c" and not path.startswith("src/backend/cuda/"):
        bad(path, no, "a choice about CUDA at compile time belongs into src/backend/select.c")


def check_text(path, text):
    lines = text.split("\n")
    is_c = path.endswith((".c", ".h", ".def", ".cu", ".cuh"))
    is_code = path.endswith(CODE) or path in ("Makefile", ".ci/run")
    if is_code and len(lines) - 1 > MAX_FILE:
        bad(path, len(lines) - 1, f"{len(lines) - 1} lines, at most {MAX_FILE}")
    for no, line in enumerate(lines, 1):
        if is_code and len(line) > MAX_LINE:
            bad(path, no, f"{len(line)} characters, at most {MAX_LINE}")
        if is_c:
            check_c_line(path, no, line)
        if path not in TEXT_DATA and path != "tests/rules.py":
            check_places(path, no, line)
    if path.endswith((".c", ".cu")):
        check_functions(path, text)
    if path == "src/base/cfg.def":
        n = len(re.findall(r"^CFG_\w+\(", text, re.M))
        if n > MAX_SETTINGS:
            bad(path, 1, f"{n} settings, at most {MAX_SETTINGS}: what a user chooses per run is an option")


def check_places(path, no, line):
    m = MACHINE.search(line)
    if m:
        bad(path, no, f"path of one machine: {m.group(0)}")
    for host in URL.findall(line):
        if not HOSTS.search(host.lower().rstrip(".")):
            bad(path, no, f"host {host} is not among the public ones that tests/rules.py knows")
    if REGISTRY.search(line):
        bad(path, no, "setting of a package registry")


def check_objects(build):
    """Sections that hold variables: constants live elsewhere (.rodata, or .data.rel.ro if they hold addresses)."""
    objects = []
    for top, _, files in os.walk(build):
        for f in files:
            src = os.path.join("src", os.path.relpath(os.path.join(top, f), build))[:-2] + ".c"
            if f.endswith(".o") and os.path.isfile(src):
                objects.append((os.path.join(top, f), src))
    if not objects:
        print(f"rules: no objects in {build}: mutable variables were not looked for (build first)")
        return
    for obj, src in objects:
        out = subprocess.run(["objdump", "-t", obj], capture_output=True, text=True, check=True).stdout
        for row in out.split("\n"):
            m = re.match(r"^[0-9a-f]+ .{7} (\S+)\t[0-9a-f]+ (?:\.hidden )?(\S+)$", row)
            if not m or not re.match(r"(\.(data|bss|tdata|tbss)(?!\.rel\.ro)|\*COM\*)", m.group(1)):
                continue
            name = re.sub(r"\.\d+$", "", m.group(2))
            if name == m.group(1) or (src, name) in MUTABLE or name.startswith((".L", "__")):
                continue
            with open(src, encoding="utf-8") as f:
                line = next((i for i, s in enumerate(f, 1) if re.search(rf"\b{re.escape(name)}\b", s)), 1)
            bad(src, line, f"{name} is a mutable variable that outlives its function")


def main():
    names, tracked = all_files()
    for path in sorted(names):
        if not path.startswith("mini/work/"):
            text = read_text(path)
            if text is not None:
                check_text(path, text)
    total = sum(os.path.getsize(p) for p in tracked)
    if total > MAX_BYTES:
        bad(".", 0, f"tracked files have {total} bytes, at most {MAX_BYTES}")
    check_objects(os.environ.get("BUILD", "build"))
    for row in found:
        print(row)
    plural = "" if len(found) == 1 else "s"
    print(f"rules: {len(names)} files, {total / 1e6:.1f} MB tracked, {len(found)} violation{plural}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
