"""A WebShop-style store with a generated catalogue."""

from treeagent.envs.shop.env import ShopEnv
from treeagent.envs.shop.session import ShopOptions

__all__ = ["ShopEnv", "ShopOptions"]
