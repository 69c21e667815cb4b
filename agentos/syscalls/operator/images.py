"""Handler of IMAGES: the images that agents can run in."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from attrs import frozen
from msgspec.structs import asdict

from agentos.agents.registry import Registry
from agentos.images.errors import BadStore, NoImage
from agentos.images.store import Image, Images
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos.threads import run_in_thread
from agentos_sdk.calls.operator import images as calls
from agentos_sdk.errors import NotFound, Unavailable
from agentos_sdk.opcodes import Op


@frozen
class ImageCalls:
    """Answers it."""

    images: Images
    registry: Registry

    @asynccontextmanager
    async def prepare(self, caller: Caller, request: calls.Images) -> AsyncIterator[Prepared]:
        async def act(call: Call) -> calls.ImagesReply:
            self._check_unused(request.remove)
            try:
                if request.remove is not None:
                    await run_in_thread(self.images.remove, request.remove)
                    call.remark = f"removed {request.remove}"
                found = await run_in_thread(self.images.list)
            except NoImage as error:
                raise NotFound(str(error)) from None
            except (BadStore, OSError) as error:
                raise Unavailable(f"images: {error}") from None
            return calls.ImagesReply(images=[describe(image) for image in found])

        yield Prepared((Right("images"),), act, about=request.remove or "")

    def _check_unused(self, name: str | None) -> None:
        using = [
            agent.name
            for agent in self.registry
            if agent.spec.image == name and (agent.declared or not agent.over.is_set())
        ]
        if name is not None and using:
            raise Unavailable(f"remove: {', '.join(using[:10])} uses the image {name}: stop it first")

    def syscalls(self) -> tuple[Syscall, ...]:
        return (Syscall(Op.IMAGES, calls.Images, prepare=self.prepare, audit="outcome"),)


def describe(image: Image) -> calls.ImageInfo:
    return calls.ImageInfo(
        name=image.name,
        digest=image.digest,
        image_layers=image.layers,
        bytes=image.bytes,
        config=calls.TakenConfig(**asdict(image.config)),
        format=image.format,
        made=image.made,
        left_out=image.left_out,
    )
