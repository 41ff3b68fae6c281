"""A real SLURM on loopback for tests: munged, slurmctld and several slurmd on this host."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.ports import free_port
from tests.holding import wait_until

CONTROLLER = "slurmctld"

PROGRAMS = ("munged", "sbatch", "slurmctld", "slurmd", "squeue")

PATIENCE = 120.0
"""How long a daemon may take to be there, in seconds: not one is slow, but its machine may be."""

STEPD = "slurmstepd: ["
"""How the process begins to name itself that looks after a job."""

# SlurmdParameters: more CPUs are claimed than there are. cred_expire: a requeued job waits as
# long; less than 5 is taken for the default of 120 seconds.
# cgroup: as real clusters do; a batch shell that dies first leaves no process behind.
# KillWait: what ends has as long to save, also on a machine that stands still meanwhile.
CONFIGURATION = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmctldParameters=enable_configless,preempt_send_user_signal
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/{tracking}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=100000,batch_sched_delay=0
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
DefMemPerCPU=100
JobRequeue=1
KillWait=30
InactiveLimit=0
MinJobAge=300
SlurmctldTimeout=30
SlurmdTimeout=30
MessageTimeout=10
CompleteWait=0
"""

CGROUPS = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainCores=no
ConstrainRAMSpace=no
ConstrainSwapSpace=no
ConstrainDevices=no
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm:
    """A SLURM that runs: partitions ``low`` and ``high``, which preempts ``low``."""

    folder: Path
    nodes: tuple[str, ...]
    daemons: _Daemons

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that lead all commands of SLURM here."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def call(self, *command: str) -> str:
        """Run a command of SLURM and return what it printed."""
        done = subprocess.run(
            command,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        return done.stdout.strip()

    def jobs(self, state: str = "RUNNING") -> list[str]:
        """Return the ids of the jobs in a state."""
        return self.call("squeue", "-h", "-o", "%i", "-t", state).split()

    def told(self, job: str, what: str) -> str:
        """Return one field of a job from SLURM, such as its ``JobState`` or ``Restarts``."""
        parts = self.call("scontrol", "-o", "show", "job", job).split()
        return dict(part.partition("=")[::2] for part in parts)[what]

    def state(self) -> str:
        """Return the states of nodes and jobs and the daemons' logs, to show when a test fails."""
        commands = (
            ("sinfo", "-N", "-l"),
            ("sinfo", "-R"),
            ("squeue", "-t", "all", "-o", "%i %T %r %P %N %S %e"),
        )
        told = []
        for command in commands:
            try:
                told.append(self.call(*command))
            except subprocess.SubprocessError as error:
                told.append(f"{' '.join(command)}: {error}")
        return "\n".join([*told, self.daemons.logs()])

    def processes_on(self, node: str) -> list[psutil.Process]:
        """Return the processes of all jobs on a node, and those that look after them."""
        jobs = self.call("squeue", "-h", "-o", "%i", "-t", "RUNNING", "-w", node).split()
        found = []
        for process in _processes_of(self.folder / "slurm.conf"):
            with suppress(psutil.Error):
                if _job_of(process) in jobs:
                    found.append(process)
        return found

    @contextmanager
    def gone(self, node: str) -> Iterator[None]:
        """Kill a node and all processes on it; start the node again at the end."""
        processes = self.processes_on(node)
        self.kill(node)
        send(processes, signal.SIGKILL)
        self._mark_down(node)
        try:
            yield
        finally:
            self.start(node)
            self.wait_for_nodes()

    @contextmanager
    def silent(self, node: str) -> Iterator[list[psutil.Process]]:
        """Stop a node and all processes on it; yield these processes.

        They do not go on by themselves; SLURM does not hear of the node until the end.
        """
        processes = self.processes_on(node)
        self.daemons.of(node).send_signal(signal.SIGSTOP)
        send(processes, signal.SIGSTOP)
        self._mark_down(node)
        try:
            yield processes
        finally:
            send(processes, signal.SIGKILL)
            self.kill(node)
            self.start(node)
            self.wait_for_nodes()

    def _mark_down(self, node: str) -> None:
        # SLURM would do so itself, after `SlurmdTimeout`.
        self.call("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")

    def kill(self, daemon: str) -> None:
        """Kill the ``slurmd`` of a node, or end ``slurmctld``.

        That one writes what it knows only every 5 s: if it were killed before, it would begin
        again without jobs that run, and end these.
        """
        process = self.daemons.of(daemon)
        if daemon == CONTROLLER:
            process.terminate()
        else:
            process.kill()
        process.wait()

    def start(self, daemon: str) -> None:
        """Start ``slurmctld``, or the ``slurmd`` of a node, again; the first one answers then."""
        self.daemons.serve(daemon)
        if daemon == CONTROLLER:
            wait_until(self._is_answered)

    def _is_answered(self) -> bool:
        try:
            return bool(self.call("sinfo", "-h"))
        except subprocess.SubprocessError:
            return False

    def wait_for_nodes(self) -> None:
        """Wait until all nodes can take jobs."""
        try:
            wait_until(lambda: set(_idle_nodes(self)) == set(self.nodes))
        except AssertionError:
            raise RuntimeError(f"not all nodes can take jobs\n{self.state()}") from None


def send(processes: list[psutil.Process], number: signal.Signals) -> None:
    """Signal processes; those that have ended do not mind."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def missing_programs() -> list[str]:
    """Return which programs of SLURM are not installed."""
    path = os.pathsep.join([*os.get_exec_path(), "/usr/sbin"])
    return [name for name in PROGRAMS if not shutil.which(name, path=path)]


@contextmanager
def slurm(nodes: int = 2, gpus: int = 2, cpus: int = 8) -> Iterator[Slurm]:
    """Run SLURM with so many nodes, each with so many pretended GPUs and CPUs."""
    # Not below pytest's folders: munged refuses paths that others may write to.
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield _Daemons(folder, stack).start(nodes, gpus, cpus)


class _Daemons:
    """The processes of one SLURM."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        stack.callback(self._end_all)
        path = os.pathsep.join([*os.get_exec_path(), "/usr/sbin"])
        self._environment = {
            **os.environ,
            "PATH": path,
            "SLURM_CONF": str(folder / "slurm.conf"),
        }

    def start(self, nodes: int, gpus: int, cpus: int) -> Slurm:
        os.chmod(self._folder, 0o755)
        # Names go into cgroups, which no two of these may share.
        own = secrets.token_hex(4)
        names = tuple(f"t{own}n{number}" for number in range(nodes))
        self._start_munge()
        self._configure(names, gpus, cpus)
        self.serve(CONTROLLER)
        for name in names:
            (self._folder / f"spool-{name}").mkdir()
            self.serve(name)
        made = Slurm(folder=self._folder, nodes=names, daemons=self)
        made.wait_for_nodes()
        return made

    def serve(self, name: str) -> None:
        """Start ``slurmctld``, or the ``slurmd`` of a node."""
        if name == CONTROLLER:
            self._serve(name, name, "-D", "-i")
        else:
            self._serve(name, "slurmd", "-D", "-N", name)

    def of(self, name: str) -> subprocess.Popen[bytes]:
        """Return the process of ``slurmctld``, or of the ``slurmd`` of a node."""
        return self._running[name]

    def _start_munge(self) -> None:
        private = self._folder / "munge"
        private.mkdir(mode=0o700)
        key = private / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        socket_path = self._folder / "munge.sock"
        self._serve(
            "munged",
            "munged",
            "--foreground",
            "--force",
            "--num-threads=2",
            f"--key-file={key}",
            f"--socket={socket_path}",
            f"--pid-file={private / 'pid'}",
            f"--log-file={private / 'log'}",
            f"--seed-file={private / 'seed'}",
        )
        wait_until(socket_path.exists)

    def _configure(self, names: tuple[str, ...], gpus: int, cpus: int) -> None:
        host = socket.gethostname().partition(".")[0]
        freezer = Path("/sys/fs/cgroup/freezer")
        has_cgroups = freezer.is_dir() and os.access(freezer, os.W_OK)
        (self._folder / "state").mkdir()
        lines = [
            CONFIGURATION.format(
                host=host,
                port=free_port(),
                folder=self._folder,
                user="root",
                tracking="cgroup" if has_cgroups else "pgid",
            )
        ]
        devices = []
        for name in names:
            lines.append(
                f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} "
                f"CPUs={cpus} RealMemory=8000 Gres=gpu:{gpus} State=UNKNOWN\n"
            )
            for number in range(gpus):
                # Plain files are refused; this is another /dev/null.
                device = self._folder / f"{name}-gpu{number}"
                os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
                devices.append(f"NodeName={name} Name=gpu File={device}\n")
        options = "Nodes=ALL MaxTime=INFINITE State=UP OverSubscribe=NO"
        lines += [
            f"PartitionName=low {options} Default=YES PriorityTier=1 PreemptMode=REQUEUE\n",
            f"PartitionName=high {options} Default=NO PriorityTier=10 PreemptMode=OFF\n",
        ]
        (self._folder / "slurm.conf").write_text("".join(lines))
        (self._folder / "gres.conf").write_text("".join(devices))
        if has_cgroups:
            (self._folder / "cgroup.conf").write_text(CGROUPS)

    def _serve(self, name: str, program: str, *options: str) -> None:
        # Not even a test run that is killed leaves a server behind.
        command = ["setpriv", "--pdeathsig", "KILL", program, *options]
        log = (self._folder / f"{name}.out").open("ab")
        quiet: dict[str, Any] = {"stdout": log, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(
            command, cwd=self._folder, env=self._environment, start_new_session=True, **quiet
        )
        log.close()
        self._running[name] = process

    def _end_all(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()
        _kill_all(self._folder / "slurm.conf")
        for name in self._running:
            _remove_cgroups(name)

    def logs(self) -> str:
        """Return the ends of all logs."""
        texts = []
        for path in sorted(self._folder.glob("*.[lo][ou][gt]")):
            texts.append(f"{path.name}:\n{path.read_text(errors='replace')[-3000:]}")
        return "\n".join(texts)


def _idle_nodes(slurm: Slurm) -> list[str]:
    try:
        return slurm.call("sinfo", "-h", "-N", "-p", "low", "-t", "idle", "-o", "%N").split()
    except subprocess.SubprocessError:
        return []


def _job_of(process: psutil.Process) -> str:
    """Return the job that a process belongs to, or that it looks after; empty if none."""
    command = process.cmdline()[0]
    if command.startswith(STEPD):
        return command.removeprefix(STEPD).partition(".")[0]
    return process.environ().get("SLURM_JOB_ID", "")


def _kill_all(configuration: Path) -> None:
    """Kill all processes of jobs: they are children of what looks after them, not ours.

    One look may miss a process that starts at that moment: three in a row must find none.
    """
    looks: list[bool] = []

    def find_none() -> bool:
        processes = list(_processes_of(configuration))
        send(processes, signal.SIGKILL)
        looks.append(not processes)
        return looks[-3:] == [True] * 3

    with suppress(AssertionError):
        wait_until(find_none, seconds=10)


def _processes_of(configuration: Path) -> Iterator[psutil.Process]:
    """Yield the processes of jobs; our own children are helpers that other tests need, too."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            of_cluster = process.environ().get("SLURM_CONF") == str(configuration)
            if of_cluster and process.ppid() != os.getpid():
                yield process


def _remove_cgroups(node: str) -> None:
    """Remove what SLURM leaves behind of a node."""
    for top in Path("/sys/fs/cgroup").glob(f"*/slurm_{node}"):
        for folder, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):
                os.rmdir(folder)
