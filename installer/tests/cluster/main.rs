//! The agent and the API server: the watch and the agent's answers, also if the server is slow, unreachable, has compacted
//! its history, or rejects the agent's token.

#[cfg(test)]
mod agent;
#[cfg(test)]
mod errands;
#[cfg(test)]
mod ground;
#[cfg(test)]
mod pod_facts;
#[cfg(test)]
mod refused;
#[cfg(test)]
mod scene;
#[cfg(test)]
mod trouble;
#[cfg(test)]
mod unseen;
#[cfg(test)]
mod watch;
