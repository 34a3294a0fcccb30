//! The built program `gybe-cni`, asked as runtimes ask it.

#[cfg(test)]
mod agent;
#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod call;
#[cfg(test)]
mod journal;
#[cfg(test)]
mod kubeconfig;
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
