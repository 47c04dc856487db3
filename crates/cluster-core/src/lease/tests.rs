//! Scripts of the agent.
