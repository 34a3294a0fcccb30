//! The agent and a cluster: its watch, its answers, and what becomes of them when the API server is
//! slow, away, forgetful, or has never heard of us.

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
