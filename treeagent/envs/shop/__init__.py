"""A WebShop-style store: generated, or from WebShop's own files."""

from treeagent.envs.shop.env import ShopEnv
from treeagent.envs.shop.options import ShopOptions

__all__ = ["ShopEnv", "ShopOptions"]
