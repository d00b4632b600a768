"""Train an agent that knows nothing of treeagent: train_any_agent.py RUN/checkpoints/base OUT METHOD [KEY=VALUE...]"""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from openai import OpenAI

import treeagent
from treeagent.contrib.doors import proxied, send_outcome
from treeagent.envs import make_env
from treeagent.envs.base import opening


def agent(base_url: str, world: Any, task: Any) -> float:
    client, (seen, _) = OpenAI(base_url=base_url, api_key="x"), world.reset(seed=task.seed, options={"task": task})
    model, reward, done = client.models.list().data[0].id, 0.0, False
    messages: list[Any] = [{"role": "user", "content": opening(task, seen)}]
    while not done and len(messages) < 20:
        said = str(client.chat.completions.create(model=model, messages=messages).choices[0].message.content)
        seen, reward, done, *_ = world.step(said.rpartition("Action: ")[2])
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": seen}]
    send_outcome(base_url, reward)
    return float(reward)


def success(config: Any, policy: Any, out: str, split: Any, count: int, plays: int) -> float:
    worlds = [make_env(config.environment.name, config.environment.options) for _ in range(count * plays)]
    with proxied(policy, config, out, group=plays) as address, ThreadPoolExecutor(32) as threads:
        tasks = [task for task in worlds[0].tasks(split, count) for _ in range(plays)]
        urls = [f"{address}/e/{task.id}:{play}/v1" for play, task in enumerate(tasks)]
        return sum(reward >= 1 for reward in threads.map(agent, urls, worlds, tasks)) / len(urls)


if __name__ == "__main__":
    base, out, method, *settings = sys.argv[1:]
    config: Any = treeagent.load_config(f"{base}/../../config.toml", settings)
    success(config, base, f"{out}/train", "train", 100, 8)
    updated: Any = treeagent.update(config, f"{out}/train", base, method)  # type: ignore[arg-type]
    print(*(success(config, each, f"{out}/test{index}", "test", 100, 2) for index, each in enumerate((base, updated))))
