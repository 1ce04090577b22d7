"""`speculoos features`: a server of hidden states for trainings in other processes."""

from typing import Annotated

import typer

from cli.commands.targets import DeviceOption, is_folder, resolve
from cli.console import say
from ops.homes import open_home
from speculoos.checksums import ChecksumCache
from speculoos.settings import load

app = typer.Typer(no_args_is_help=True, help="Server of hidden states for trainings in other processes.")


@app.command()
def serve(
    model: Annotated[str, typer.Argument(help="Base model: a name or a folder.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; addresses other than loopback require SPECULOOS_FEATURES_TOKEN.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free port.")] = 7862,
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16, float16, or auto: bfloat16 if the hardware supports it.")
    ] = "float32",
    device: DeviceOption = "",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0: all.")] = 0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Max tokens per request, including padding.")] = 65_536,
) -> None:
    """Serve a base model's hidden states; the setting hidden_states of a training selects the server."""
    from training.hidden_states.server import RequestLimits, ServerAddress, serve

    settings = load() if is_folder(model) else open_home()
    ref = resolve(settings, model)
    serve(
        ref.base_path,
        ServerAddress(host, port, settings.features_token),
        name=ref.name,
        dtype=dtype,
        device=device or settings.device,
        threads=threads,
        limits=RequestLimits(tokens=max_tokens),
        known=ref.base_known if ref.base_id else None,
        checksum_cache=ChecksumCache.of(settings) if ref.base_id else ChecksumCache(),
        on_ready=say,
    )
