//! Settings in the environment and the ConfigMap, and the desired state that results from them.

#[cfg(test)]
mod gathered;
#[cfg(test)]
mod names;
#[cfg(test)]
mod said;
#[cfg(test)]
mod template;
#[cfg(test)]
mod values;
#[cfg(test)]
mod wanted;
