"""Kernel startup and shutdown: opens the files in the state directory, runs a kernel and closes them."""

import logging
import os
import time
from collections.abc import Mapping, Sequence

import attrs
import trio

from agentos import __version__
from agentos.agents.tree import kept_stops
from agentos.agents.tree.kept_stops import KeptStops
from agentos.agents.waking import last_runs
from agentos.agents.waking.last_runs import LastRuns
from agentos.boot.last_run import DatabaseCheck, RunRecorder, describe_kill, describe_loss, read_record
from agentos.config.exposed_files import log_exposed_files
from agentos.database import DatabaseError, open_database
from agentos.kernel.record import record_kernel
from agentos.kernel.wire.listener import ListenError
from agentos.llm import budgets
from agentos.llm.open_model import open_model
from agentos.mcp.pins import TABLES as PINS
from agentos.permissions.approvals.answers import TABLES as ANSWERS
from agentos.permissions.approvals.entries import TABLES as APPROVALS
from agentos.private_files import UnsafeFile, describe_error
from agentos.recordings.recorder.recorder import open_recorder
from agentos.recordings.recorder.selection import RecordingSettings
from agentos.services import ids, usage
from agentos.services.audit.chain import KILLED, kernel_entry
from agentos.services.audit.log import open_audit
from agentos.services.event_log.file import open_event_log
from agentos.services.ids import open_ids
from agentos.services.logs.kernel_log import KernelLog
from agentos.services.logs.log import open_logs
from agentos.services.mail.copies import TABLES as SNAPSHOT_MAIL
from agentos.services.mail.rows import GREATEST_ID
from agentos.services.mail.rows import TABLES as MAIL
from agentos.services.publisher import Events
from agentos.services.state.batch import StateLimits
from agentos.services.state.rows import TABLES as STATE
from agentos.services.state.state import State
from agentos.threads import run_in_thread
from agentos_sdk.project import CONFIG, RunningKernel, project_id

from .access import Stores, open_access
from .host import BootError, Host, open_host
from .kernel import Kernel, Settings
from .mcp import set_up_mcp
from .network import HttpFiles, read_secrets
from .serving import serve

log = logging.getLogger("agentos.kernel")

SCHEMAS: Mapping[str, Sequence[str]] = {  # of the database
    "quotas": budgets.TABLES,
    "usage": usage.TABLES,
    "kept_stops": kept_stops.TABLES,
    "last_runs": last_runs.TABLES,
    "approvals": APPROVALS,
    "answers": ANSWERS,
    "mcp_pins": PINS,
    "state": STATE,
    "ids": ids.TABLES,
    "mail": MAIL,
    "snapshot_mail": SNAPSHOT_MAIL,
}


def run(settings: Settings) -> str | None:
    """Run a kernel until a signal stops it (None) or its root supervisor gives up (the reason).

    Raises :class:`BootError` if the kernel can't start.
    """
    with KernelLog() as kernel_log, open_host(settings.config.kernel, settings.socket, settings.state_dir) as host:
        try:
            with record_kernel(describe_kernel(settings)):
                return trio.run(run_kernel, settings, host, kernel_log)
        except (ListenError, DatabaseError) as error:
            raise BootError(str(error)) from None
        except UnsafeFile as error:
            raise BootError(describe_error(error, settings.state_dir)) from None


def describe_kernel(settings: Settings) -> RunningKernel:
    """The kernel's record, for other processes of its user."""
    file = settings.config.file
    return RunningKernel(
        name=project_id(str(file or settings.config.directory / CONFIG)),
        pid=os.getpid(),
        since=time.time(),
        socket=settings.socket,
        state_dir=str(settings.state_dir),
        file=os.path.realpath(file) if file else None,
    )


async def run_kernel(settings: Settings, host: Host, kernel_log: KernelLog) -> str | None:
    """Open the files in the state directory, then run a kernel; the files are closed last."""
    events, recorder = Events(), RunRecorder(host.state_dir)
    last = await run_in_thread(read_record, host.state_dir)
    check = DatabaseCheck(last, host.state_dir, settings.accept_lost_state)
    async with (
        open_logs(host.state_dir / "logs", settings.config.logs) as logs,
        recorder.keep(),
        open_database(
            host.state_dir / "agentos.db",
            SCHEMAS,
            check,
            durable=settings.config.kernel.mail == "durable",
        ) as database,
        open_audit(host.state_dir / "audit", __version__, events.publish) as audit,
        open_event_log(host.state_dir / "events") as event_log,
        open_recorder(host.state_dir / "recordings", read_settings(settings)) as recordings,
        open_ids(database, "callers", above=check.find_given()) as caller_ids,
        open_ids(database, "messages", GREATEST_ID, check.find_given(1_000_000)) as message_ids,
    ):
        kernel_log.attach(logs)
        await recorder.begin(database)
        llm = settings.llm or settings.config.llm
        await run_in_thread(log_exposed_files, attrs.evolve(settings.config, llm=llm))
        model = await open_model(llm, database, events.publish)
        stops = await KeptStops.load(database)
        limits = StateLimits(settings.config.kernel.max_state_keys, settings.config.kernel.max_state_bytes)
        stored = await State.load(database, limits, events.publish)
        declared, runs = [*settings.config.root.agents()], await LastRuns.load(database)
        await stops.forget_others([spec.name for spec in declared])
        await runs.forget_others([spec.name for spec in declared if spec.schedule is not None])
        secrets = await run_in_thread(read_secrets, settings.config)
        files = await run_in_thread(HttpFiles.read, settings.config)
        stores = Stores(events, model, database, audit, logs, stored, event_log, secrets, caller_ids, message_ids)
        access = open_access(settings.config, settings.show, host, stores)
        await access.callers.approvals.load(check.find_given())
        await access.callers.mail.load()
        if last is not None and message_ids.is_new:
            log.info('messages to declared agents outlive the kernel from now on, except with mailbox = "memory"')
        mcp = await set_up_mcp(database, access.callers, settings.config.mcp)
        kernel = Kernel(settings, host, model, access, stops, runs, mcp, recorder, recordings, files)
        if (killed := await run_in_thread(describe_kill, last)) is not None:
            events.publish(killed)
            audit.note(kernel_entry(KILLED, killed.text, "lost"))
        if (loss := describe_loss(last)) is not None:
            log.warning(loss)
        return await serve(kernel)


def read_settings(settings: Settings) -> RecordingSettings:
    """What is recorded. Raises :class:`BootError` for an agent that there isn't."""
    declared = {spec.name for spec in settings.config.root.agents()}
    if unknown := [name for name in settings.record if name not in declared]:
        raise BootError(f"--record {unknown[0]}: the configuration has no agent of that name")
    return RecordingSettings(settings.config.recording.max_total, settings.record, settings.config.recording.masks)
