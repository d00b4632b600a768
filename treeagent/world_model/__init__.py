"""A learned experience model that imagines transitions beside the real environment."""
