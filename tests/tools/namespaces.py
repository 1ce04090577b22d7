"""Two network namespaces joined by a cable: two machines on one kernel. Root alone can make them."""

import os
import shutil
import subprocess
from pathlib import Path

NET = "10.77.0"


class Missing(Exception):
    """No namespaces can be made here; the text says why."""


class Machine:
    """One namespace with an address, and a folder of its own that the others do not see."""

    def __init__(self, name: str, number: int, folder: Path):
        self.name, self.address, self.folder = f"sp-{name}-{os.getpid()}", f"{NET}.{number}", folder
        self.hidden: Path | None = None
        folder.mkdir(parents=True)
        _ip("netns", "add", self.name)
        _ip("-n", self.name, "link", "set", "lo", "up")

    @property
    def run(self) -> tuple[str, ...]:
        """What goes before a command of this machine. Over `hidden` an empty disk is mounted for it."""
        inside = ("ip", "netns", "exec", self.name)
        if self.hidden is None:
            return inside
        script = 'mount -t tmpfs none "$0" && exec "$@"'
        return (*inside, "unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(self.hidden))

    def end(self) -> None:
        subprocess.run(["ip", "netns", "delete", self.name], capture_output=True)


def two(folder: Path) -> tuple[Machine, Machine]:
    """Two machines that reach each other and nothing else. Raises Missing."""
    if os.getuid() != 0:
        raise Missing("only root may make network namespaces")
    for program in ("ip", "unshare"):
        if not shutil.which(program):
            raise Missing(f"no `{program}` here; on Debian: apt-get install iproute2 util-linux")
    made: list[Machine] = []
    try:
        made += [Machine("a", 1, folder / "first")]
        made += [Machine("b", 2, folder / "second")]
        ends = [f"va{os.getpid()}", f"vb{os.getpid()}"]
        _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for machine, end in zip(made, ends, strict=True):
            _ip("link", "set", end, "netns", machine.name)
            _ip("-n", machine.name, "address", "add", f"{machine.address}/24", "dev", end)
            _ip("-n", machine.name, "link", "set", end, "up")
    except BaseException:
        for machine in made:
            machine.end()
        raise
    made[0].hidden, made[1].hidden = made[1].folder, made[0].folder
    return made[0], made[1]


def _ip(*words: str) -> None:
    made = subprocess.run(["ip", *words], capture_output=True, text=True)
    if made.returncode:
        raise Missing(f"`ip {' '.join(words)}` does not work here: {made.stderr.strip()}")
