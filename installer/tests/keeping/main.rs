//! `gybe node --install`: the built program keeps a node's directories, and is met as the kubelet,
//! other agents and operators meet it.

#[cfg(test)]
mod clustered;
#[cfg(test)]
mod confirms;
#[cfg(test)]
mod ends;
#[cfg(test)]
mod exhausted;
#[cfg(test)]
mod explained;
#[cfg(test)]
mod fights;
#[cfg(test)]
mod follows;
#[cfg(test)]
mod heals;
#[cfg(test)]
mod hurt;
#[cfg(test)]
mod leaves;
#[cfg(test)]
mod node;
#[cfg(test)]
mod takes_over;
#[cfg(test)]
mod tells;
#[cfg(test)]
mod tokens;
