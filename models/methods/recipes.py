"""Recipes: YAML files of training settings. No torch. A recipe has `about` (one line), `source` (where its numbers come
from), `method` and `settings`."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from models.methods import train_config
from models.methods.settings import TrainConfig
from speculoos.errors import BadInput, NotFound

FOLDER = Path(__file__).resolve().parents[2] / "recipes"


class Recipe(BaseModel):
    """One recipe. `settings` do not include `method`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    method: str
    about: str = ""
    source: str = ""
    settings: dict[str, Any] = {}

    def config(self, changes: Mapping[str, Any] | None = None) -> TrainConfig:
        """The validated settings, updated with `changes`."""
        return train_config(**{"method": self.method, **self.settings, **(changes or {})})


def list_recipes(method: str = "") -> list[Recipe]:
    """The built-in recipes (of one method), by name."""
    recipes = [read_recipe(path.stem) for path in sorted(FOLDER.glob("*.yaml"))]
    return [r for r in recipes if not method or r.method == method]


def read_recipe(name: str) -> Recipe:
    """A built-in recipe by name, or a YAML file by path. Raises NotFound or BadInput."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(p.stem for p in sorted(FOLDER.glob("*.yaml")))
        raise NotFound(f"No recipe {name!r}; known are {known}, or use the path of a YAML file.")
    return _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=100)
def _read(path: Path, _mtime: int) -> Recipe:
    """Cached by modification time, since forms read all recipes each time they open."""
    import yaml

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        recipe = Recipe(name=path.stem, **data)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: not readable as YAML ({' '.join(str(error).split())}).") from None
    except (TypeError, ValidationError):
        raise BadInput(f"{path}: expected a table with `about`, `source`, `method` and a table `settings`.") from None
    recipe.config()
    return recipe


def load_recipe(name: str) -> dict[str, Any]:
    """Settings of a recipe, including `method`."""
    recipe = read_recipe(name)
    return {"method": recipe.method, **recipe.settings}


def is_built_in(name: str) -> bool:
    """Whether `name` is a built-in recipe rather than a file."""
    return bool(name) and (FOLDER / f"{name}.yaml").is_file()


def config_for(method: str, recipe: str, settings: Mapping[str, Any]) -> TrainConfig:
    """Settings of a stored request: those of the built-in recipe, if any, updated with `settings`."""
    start = load_recipe(recipe) if is_built_in(recipe) else {}
    if start and start["method"] != method:
        raise BadInput(f"Recipe {recipe!r} is for {start['method']}, not for {method}.")
    return train_config(**{**start, **settings, "method": method})
