"""A WebShop-style store with a generated catalogue."""

from treeagent.envs.shop.env import ShopEnv, ShopOptions

__all__ = ["ShopEnv", "ShopOptions"]
