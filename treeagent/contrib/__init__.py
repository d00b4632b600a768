"""Everything optional, one folder a thing. ``treeagent.seams`` reads the two tables below; the core imports no more."""

from collections.abc import Mapping

NAMES: Mapping[str, Mapping[str, str]] = {
    "environment.name": {
        "agentdojo": "treeagent.contrib.worlds.tasksets.agentdojo:AgentDojoEnv",
        "alfworld": "treeagent.contrib.worlds.alfworld:AlfworldEnv",
        "bfcl": "treeagent.contrib.worlds.tasksets.bfcl:BfclEnv",
        "booking": "treeagent.contrib.worlds.booking:BookingEnv",
        "frozenlake": "treeagent.contrib.worlds.frozenlake:FrozenLakeEnv",
        "minigrid": "treeagent.contrib.worlds.minigrid:MiniGridEnv",
        "miniwob": "treeagent.contrib.worlds.miniwob:MiniWoBEnv",
        "planning": "treeagent.contrib.worlds.planning:PlanningEnv",
        "reasoning": "treeagent.contrib.worlds.tasksets.reasoning:ReasoningEnv",
        "sandbox": "treeagent.contrib.worlds.sandbox:SandboxEnv",
        "swe": "treeagent.contrib.worlds.swe:SweEnv",
        "tau2": "treeagent.contrib.worlds.tasksets.tau2:Tau2Env",
        "textworld_express": "treeagent.contrib.worlds.tasksets.textworld_express:TextWorldExpressEnv",
        "webarena": "treeagent.contrib.worlds.webarena:WebArenaEnv",
    },
    "environment.wrappers": {
        "approval": "treeagent.contrib.guards.approval:ApprovedEnv",
        "disturbances": "treeagent.contrib.guards.disturbed:DisturbedEnv",
        "rubric": "treeagent.contrib.judging.rubric:RubricEnv",
        "shield": "treeagent.contrib.guards.shield:ShieldedEnv",
    },
    "policy.generator": {
        "pool": "treeagent.contrib.servers.pool:Servers",
        "chat": "treeagent.contrib.servers.chat:Chat",
    },
    "policy.format": {
        "plan": "treeagent.contrib.formats.plan:PlanThoughtCommand",
        "tags": "treeagent.contrib.formats.tags:TagCalls",
        "llama": "treeagent.contrib.formats.json_calls:LlamaCalls",
        "mistral": "treeagent.contrib.formats.json_calls:MistralCalls",
    },
    "search.method": {
        "ab_mcts": "treeagent.contrib.methods.ab_mcts:ABMCTS",
        "rebase": "treeagent.contrib.methods.rebase:Rebase",
        "random_expand": "treeagent.contrib.methods.chains:RandomExpand",
        "entropy_expand": "treeagent.contrib.methods.chains:EntropyExpand",
        "lookahead": "treeagent.contrib.methods.lookahead:Lookahead",
        "critic": "treeagent.contrib.methods.critic:CriticSearch",
        "rollouts": "treeagent.contrib.methods.rollouts:Rollouts",
    },
    "update.advantages.kind": {
        "aspo": "treeagent.contrib.methods.advantages:aspo_advantages",
        "simpletir": "treeagent.contrib.methods.advantages:simpletir_advantages",
    },
    "rewards.function": {
        "budgets": "treeagent.contrib.judging.budgets:Budgets",
        "cascade": "treeagent.contrib.judging.cascade:Cascade",
        "judge": "treeagent.contrib.judging.judge:Judge",
        "learned": "treeagent.contrib.judging.learned:Learned",
        "weighted": "treeagent.contrib.judging.weighted:Weighted",
    },
}
"""For each seam, short names and what they stand for: ``"module:Name"``."""

COMMANDS: Mapping[str, tuple[str, str]] = {
    "curriculum": ("treeagent.contrib.curriculum.loop", "Search and learn in rounds, on tasks that grow harder."),
    "lag": ("treeagent.contrib.scale.lag", "Search and learn in rounds, with updates beside the next search."),
    "early-experience": ("treeagent.contrib.early_experience.train", "Learn from what a policy's own actions led to."),
    "hindsight": ("treeagent.contrib.hindsight.divergence", "Measure how much each step of a run's trees mattered."),
    "gguf": ("treeagent.contrib.gguf.files", "Import a GGUF file as a standard checkpoint."),
    "plan": ("treeagent.contrib.plan.measure", "Estimate what a run costs, from a few items of each stage."),
    "scale": (
        "treeagent.contrib.scale.settings",
        "Run a command on Ray, or with updates in several processes.",
    ),
    "proxy": ("treeagent.contrib.doors.proxy", "Serve a policy to any agent, and keep its conversations as trees."),
    "serve": ("treeagent.contrib.doors.serve", "Serve a policy that plans by search before each answer."),
    "reward": ("treeagent.contrib.judging.fit", "Fit a reward model to a run's trees."),
    "review": ("treeagent.contrib.people.cli", "Let people judge a run, and write it anew as they judged it."),
    "approve": ("treeagent.contrib.guards.approval", "Approve or refuse calls that wait for a person."),
    "suite": ("treeagent.contrib.suite.report", "Evaluate a policy under each disturbance of the environment."),
    "export": ("treeagent.contrib.traces.dataset", "Export a run's trees as a dataset, or a merged checkpoint."),
    "import": ("treeagent.contrib.traces.imported", "Import transcripts of other agents as a run."),
    "traces": ("treeagent.contrib.traces.traces", "Write a run's episodes or trees as traces for other tools."),
    "view": ("treeagent.contrib.viewer.page", "Write a page that shows the trees and episodes of runs."),
}
"""Commands of the command line: the module whose ``app`` holds each, and its line of help."""
