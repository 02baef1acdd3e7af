"""Kill `lipspline reconstruct` at every system call that writes: `python tests/faults.py [out.npy out.nii.gz out ...]`.

A library that is loaded before all others counts the calls that change files below one folder, and ends the process by
SIGKILL before the n-th, or in the midst of it if it writes bytes: half of them are then on disk. One process imports
everything and forks a child for each n, so that a run takes a second. After each kill no certificate may lie beside an
image that is not its own, and the same command must finish with the same images and leave nothing else behind.
"""

import contextlib
import ctypes
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[PATH_MAX];
static long left = -1, seen = 0;

void faults_arm(const char *folder, long count) { snprintf(root, sizeof root, "%s", folder), left = count, seen = 0; }
long faults_seen(void) { return seen; }

static int below(int folder, const char *path) {
    char place[2 * PATH_MAX] = "", link[64];
    if (left < 0) return 0;
    if (path == NULL || path[0] != '/') {
        snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
        ssize_t n = readlink(link, place, PATH_MAX);
        if (n < 0) return 0;
        place[n] = 0;
    }
    if (path != NULL) strncat(place, "/", 2), strncat(place, path, PATH_MAX);
    return strncmp(place + (place[0] == '/' && place[1] == '/'), root, strlen(root)) == 0;
}
static int now(int folder, const char *path) { return below(folder, path) && seen++ == left; }
static void end(void) { kill(getpid(), SIGKILL); }
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define BYTES(name, type, ...) if (now(fd, NULL)) { REAL(name)(fd, data, size / 2 __VA_ARGS__); end(); }

ssize_t write(int fd, const void *data, size_t size) { BYTES(write, ssize_t) return REAL(write)(fd, data, size); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    BYTES(pwrite, ssize_t, , at) return REAL(pwrite)(fd, data, size, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    BYTES(pwrite64, ssize_t, , at) return REAL(pwrite64)(fd, data, size, at); }
ssize_t writev(int fd, const struct iovec *v, int n) { if (now(fd, NULL)) end(); return REAL(writev)(fd, v, n); }
int fsync(int fd) { if (now(fd, NULL)) end(); return REAL(fsync)(fd); }
int fdatasync(int fd) { if (now(fd, NULL)) end(); return REAL(fdatasync)(fd); }
int ftruncate(int fd, off_t n) { if (now(fd, NULL)) end(); return REAL(ftruncate)(fd, n); }
int ftruncate64(int fd, off64_t n) { if (now(fd, NULL)) end(); return REAL(ftruncate64)(fd, n); }
int rename(const char *a, const char *b) { if (now(AT_FDCWD, b)) end(); return REAL(rename)(a, b); }
int renameat(int f, const char *a, int g, const char *b) { if (now(g, b)) end(); return REAL(renameat)(f, a, g, b); }
int unlink(const char *a) { if (now(AT_FDCWD, a)) end(); return REAL(unlink)(a); }
int unlinkat(int f, const char *a, int flags) { if (now(f, a)) end(); return REAL(unlinkat)(f, a, flags); }
int mkdir(const char *a, mode_t mode) { if (now(AT_FDCWD, a)) end(); return REAL(mkdir)(a, mode); }
int mkdirat(int f, const char *a, mode_t mode) { if (now(f, a)) end(); return REAL(mkdirat)(f, a, mode); }
int rmdir(const char *a) { if (now(AT_FDCWD, a)) end(); return REAL(rmdir)(a); }
int link(const char *a, const char *b) { if (now(AT_FDCWD, b)) end(); return REAL(link)(a, b); }
int symlink(const char *a, const char *b) { if (now(AT_FDCWD, b)) end(); return REAL(symlink)(a, b); }
#define OPENS(name) int name(const char *path, int flags, ...) { \
    va_list rest; va_start(rest, flags); \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; va_end(rest); \
    if (flags & (O_CREAT | O_TRUNC) && now(AT_FDCWD, path)) end(); \
    return REAL(name)(path, flags, mode); }
OPENS(open) OPENS(open64)
#define OPENSAT(name) int name(int f, const char *path, int flags, ...) { \
    va_list rest; va_start(rest, flags); \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; va_end(rest); \
    if (flags & (O_CREAT | O_TRUNC) && now(f, path)) end(); \
    return REAL(name)(f, path, flags, mode); }
OPENSAT(openat) OPENSAT(openat64)
"""
OUTPUTS = ("out.npy", "out.nii.gz", "out.h5", "out")
LOADED_FIRST = "LIPSPLINE_FAULTS"


def build(folder: Path) -> Path:
    """Compile the library that counts."""
    source, library = folder / "shim.c", folder / "shim.so"
    source.write_text(SHIM)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-w", "-o", library, source, "-ldl"], check=True)
    return library


def run(arguments: list[str]) -> int:
    """The exit code of the command line in this process."""
    from lipspline import cli

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            sys.argv = ["lipspline", *arguments]
            cli.main()
        except SystemExit as stop:
            if stop.code:
                os.write(2, errors.getvalue().encode())
            return int(str(stop.code or 0))
    return 1


def in_a_child(arguments: list[str], folder: Path, count: int) -> int:
    """The exit code in a fork, which is killed at its `count`-th change below `folder`."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        ctypes.CDLL(os.environ[LOADED_FIRST]).faults_arm(str(folder).encode(), ctypes.c_long(count))
        code = run(arguments)
    finally:
        os._exit(code)


def snapshot(path: Path) -> tuple[list[str], bytes]:
    """The names beside a result, and its image."""
    from lipspline.formats import mri, pictures

    volume = pictures.read(path) if path.suffix == ".tif" else mri.read(path)
    names = sorted(str(file.relative_to(path.parent)) for file in path.parent.rglob("*"))
    return names, volume.slices.numpy().tobytes()


def misplaced(path: Path) -> bool:
    """Whether a certificate lies beside files that are not its own."""
    from lipspline._infra.files import sha256
    from lipspline.formats.output import read_certificate

    certificate = read_certificate(path.with_name(path.name + ".json"))
    if certificate is None:
        return False
    return any(
        not (path.parent / name).is_file() or sha256(path.parent / name) != value
        for name, value in certificate["files"].items()
    )


def kill_everywhere(name: str, folder: Path, *, replace: bool, every: int = 1) -> Iterator[str]:
    """What was wrong after the kills, at every `every`-th change; the last line has the number of kills."""
    import sample_files
    from lipspline.imaging.verify import verify

    source = sample_files.write_npy(folder / "v.npy", sample_files.images())
    net = sample_files.write_denoiser(folder / "net.safetensors")
    options = ["--simulate", "--report", "--model", str(net), "--tol", "1e-3"]

    def command(path: Path, steps: int = 3) -> list[str]:
        words = ["reconstruct", "mri", str(source), str(path), *options, "--max-steps", str(steps)]
        return [*words, "--force"] if replace else words

    before = folder / "before"
    before.mkdir()
    # In this process, so that children find everything imported.
    if replace and run(command(before / name, steps=2)[:-1]) != 0:
        yield "the first result cannot be made"
    whole = folder / "whole"
    shutil.copytree(before, whole)
    if run(command(whole / name)) != 0:
        yield "the command fails without a kill"
    expected, kills = snapshot(whole / name), 0
    while True:
        place = folder / "now"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(before, place)
        code = in_a_child(command(place / name), place, every * kills)
        if code == 0:
            break
        if code != -signal.SIGKILL:
            yield f"change {every * kills}: exit code {code}"
        if misplaced(place / name):
            yield f"change {every * kills}: a certificate beside another image"
        if in_a_child(command(place / name), place, -1) != 0:
            yield f"change {every * kills}: the same command does not finish"
        elif snapshot(place / name) != expected:
            yield f"change {every * kills}: another result, or leftovers: {snapshot(place / name)[0]}"
        elif not verify(place / name).holds:
            yield f"change {every * kills}: the certificate does not hold"
        kills += 1
    yield f"{kills} kills of {name}{' that replaces another' if replace else ''}"


def main(arguments: list[str]) -> int:
    """The command line: names of outputs, `every=N` for only some of the changes."""
    if LOADED_FIRST not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            library = str(build(Path(folder)))
            environment = {**os.environ, "LD_PRELOAD": library, LOADED_FIRST: library, "OMP_NUM_THREADS": "1"}
            return subprocess.run([sys.executable, __file__, *arguments], env=environment).returncode
    import torch

    torch.set_num_threads(1)
    every = next((int(word[6:]) for word in arguments if word.startswith("every=")), 1)
    names, bad = [word for word in arguments if "=" not in word] or OUTPUTS, 0
    for name in names:
        for replace in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                *wrong, last = kill_everywhere(name, Path(folder), replace=replace, every=every)
            print(*wrong, f"{last}, {len(wrong)} complaints", sep="\n", flush=True)
            bad += len(wrong)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main(sys.argv[1:]))
