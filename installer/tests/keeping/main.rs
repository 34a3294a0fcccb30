//! The built `gybe node --install`: it reconciles a node's directories, with the kubelet's probes, other programs' rewrites
//! and an operator's changes.

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
mod leads;
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
