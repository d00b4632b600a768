"""A dynamics that adds all configured components to its steps, and their weighted sum as the reward."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from treeagent.contrib.judging.cascade import Assessor, value_of
from treeagent.contrib.judging.components import Rule, Step, derived_components, is_unjudged, rule_components, total
from treeagent.contrib.judging.config import RewardsConfig
from treeagent.contrib.judging.judge import ToolCaller
from treeagent.contrib.judging.rubric import Reference, call_scores
from treeagent.envs.base import ToolSpec
from treeagent.envs.calls import as_call
from treeagent.envs.dynamics import EnvDynamics
from treeagent.types import Action, Dynamics, State, Task, ToolCall, Transition, Value, waiting


@dataclass(frozen=True, slots=True)
class ScoredDynamics:
    """Adds components to the steps of a dynamics.

    With weights, the reward of a step is Σ_i w_i c_i, and its component ``outcome`` is the environment's own reward. If
    a judge or tiers have a weight but gave no verdict on an end, its reward is None, and V(s) replaces it. If rewards
    are withheld, a step has only the components that have a budget, and none of these depends on the answer.
    """

    dynamics: Dynamics
    config: RewardsConfig
    rules: dict[str, Rule]
    tools: Sequence[ToolSpec] = ()
    most_steps: int = 1
    environment: EnvDynamics | None = None
    """``dynamics`` itself if it is an environment, which is then asked for the reference of a call; else None."""
    weigh: bool = True
    """False leaves the reward unchanged, as at evaluation, which measures the environment's own reward."""
    reveal: bool = True
    """False if rewards are withheld."""
    assessor: Assessor | None = None
    """Judges the ends of episodes."""
    value: Value | None = None
    """Estimates V(s) for the tier "learned"."""

    async def reset(self, task: Task) -> State:
        return await self.dynamics.reset(task)

    async def step(self, state: State, action: Action) -> Transition:
        reference: list[ToolCall] | None = None
        if self.environment is not None and self.config.tools and self.reveal and self.tools:
            reference, transition = await self.environment.ask_and_step(
                state, action, lambda env: Reference(env, self.tools).right_calls()
            )
        else:
            transition = await self.dynamics.step(state, action)
        if transition.error:
            return transition
        observation = transition.state.messages[-1].content
        step = Step(
            state.task,
            state.messages,
            action,
            observation,
            transition.terminated,
            transition.invalid,
            transition.reward,
        )
        components = {**derived_components(action, transition), **transition.components}
        if self.config.tools and self.tools:
            components |= call_scores(action, self.tools, reference, self.most_steps)
        if not self.reveal:
            rules = {name: rule for name, rule in self.rules.items() if name in self.config.budgets}
            known = components | rule_components(rules, step)
            return replace(transition, components={name: known[name] for name in self.config.budgets if name in known})
        components |= rule_components(self.rules, step)
        ended = transition.terminated or transition.truncated
        if ended and self.assessor is not None:
            with waiting():  # a verdict may take longer than a step of the environment
                components |= await self.assessor.assess(
                    transition.state,
                    components,
                    value_of(self.value, transition.state),
                    self._tool_caller(state, action, transition),
                )
        reward = transition.reward
        if self.config.weights and self.weigh:
            reward = None if is_unjudged(self.config, components, ended) else total(self.config.weights, components)
        return replace(transition, reward=reward, components=components)

    def _tool_caller(self, before: State, action: Action, transition: Transition) -> ToolCaller | None:
        """The function by which a judge inspects the state where an episode ended; None if there is no environment."""
        return (
            None if self.environment is None else read_only_caller(self.environment, before, action, transition.state)
        )


def read_only_caller(environment: EnvDynamics, before: State, action: Action, end: State) -> ToolCaller:
    """A function that carries out calls of read-only tools at ``end``.

    An environment takes no calls after an answer, and the answer changes nothing else, so the calls are then made at
    ``before``. In a stochastic environment they are always made at ``end``, because a step from ``before`` could change
    the random outcome of other steps from there.
    """
    answers = {tool.name for tool in environment.env.tools() if tool.answers}
    call = as_call(action.call, environment.env.tools())
    answered = isinstance(call, ToolCall) and call.name in answers and not environment.env.stochastic
    state = before if answered else end

    async def call_tool(call: ToolCall) -> str:
        found = await environment.step(state, Action(call.name, call))
        return found.state.messages[-1].content

    return call_tool
