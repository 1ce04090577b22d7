"""Adds an option to Medusa's settings, and prints it as a control, as JSON, as a command and as help."""

import dataclasses

import gradio as gr

import models.methods as methods
from app.forms import OWN_SETTINGS, recipe_values, train_request
from app.views.train_settings import SettingControls
from cli.main import main
from models.methods.settings import setting
from workers.jobs.request import command_for
from workers.jobs.requests import from_json


class Config(methods.METHODS["medusa"].config):
    dropout: float = setting(0.1, "Part of the units that a step leaves out.", 0, 1, label="Dropout")


if __name__ == "__main__":
    methods._known["medusa"] = dataclasses.replace(methods.METHODS["medusa"], config=Config)
    with gr.Blocks():
        control = SettingControls().controls["dropout"]
    print(control.label, control.value, control.info)
    values = recipe_values("medusa", OWN_SETTINGS) | {"dropout": 0.5}
    request = train_request("b", "d", "medusa", OWN_SETTINGS, values)
    stored = from_json("train", request.to_json()).config.dropout
    print(request.to_json()["settings"], command_for(request), stored)
    main(["train", "medusa", "--help"])
