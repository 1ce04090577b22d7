"""speculoos features: the server that runs a base for trainings elsewhere."""

from typing import Annotated

import typer

from cli.console import say

app = typer.Typer(no_args_is_help=True, help="Hidden states of a base, for trainings in other processes.")


@app.command()
def serve(
    model: Annotated[str, typer.Argument(help="Base model: a name, or a folder.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; other than loopback needs SPECULOOS_FEATURES_TOKEN.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 7862,
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16, float16, or auto: bfloat16 where products in it run natively.")
    ] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N; default SPECULOOS_DEVICE.")] = "",
    threads: Annotated[int, typer.Option(min=0, help="Threads of the processor; 0 for all.")] = 0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one request, padding included.")] = 65_536,
) -> None:
    """Serve a base's hidden states; a training names the server in its setting hidden_states."""
    from cli.commands.targets import is_folder, resolve
    from ops.homes import open_home
    from speculoos.settings import load
    from speculoos.sums import ChecksumCache
    from training.hidden_states.main import ServerAddress, serve
    from training.hidden_states.request import RequestLimits

    settings = load() if is_folder(model) else open_home()
    place = ServerAddress(host, port, settings.features_token)
    ref = resolve(settings, model)
    serve(
        ref.base_path,
        place,
        name=ref.name,
        dtype=dtype,
        device=device or settings.device,
        threads=threads,
        limits=RequestLimits(tokens=max_tokens),
        known=ref.base_known if ref.base_id else None,
        sums=ChecksumCache.of(settings) if ref.base_id else ChecksumCache(),
        say=say,
    )
