"""What the gate adds to a run."""

from __future__ import annotations

from flows.gate.judging import GatePlugin
from flows.gate.questions import AnswersPlugin, QuestionPlugin

PLUGINS = (QuestionPlugin, GatePlugin)
FLOW_PLUGINS = (AnswersPlugin,)
