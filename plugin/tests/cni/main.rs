//! The built program `gybe-cni`, called as runtimes call it.

#[cfg(test)]
mod absent_agent;
#[cfg(test)]
mod agent;
#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod call;
#[cfg(test)]
mod kubeconfig;
#[cfg(test)]
mod log_socket;
#[cfg(test)]
mod pipes;
#[cfg(test)]
mod pods;
#[cfg(test)]
mod program;
#[cfg(test)]
mod protocol;
#[cfg(test)]
mod recorded;
#[cfg(test)]
mod teardown;
