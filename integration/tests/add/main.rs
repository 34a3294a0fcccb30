//! ADD, CHECK and DEL by the built plugin in a namespace: input, annotations, families, system calls.

#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod hostile_annotations;
#[cfg(test)]
mod ipv6;
#[cfg(test)]
mod kubeconfig;
#[cfg(test)]
mod misspelt;
#[cfg(test)]
mod system_calls;
