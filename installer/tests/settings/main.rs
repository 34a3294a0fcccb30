//! What an operator says, in the environment and in the ConfigMap, and what is made of it.

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
