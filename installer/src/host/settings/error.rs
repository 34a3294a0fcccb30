//! What can be wrong with the settings, and how it is said: all of it, in one message.

use std::fmt;

/// One setting that cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidSetting {
    /// The variable, or the ConfigMap's key.
    pub name: String,
    /// What it says, cut short.
    pub value: String,
    /// What would be right, or what took its place.
    pub why: String,
}

impl InvalidSetting {
    pub(super) fn new(name: &str, value: &str, why: impl Into<String>) -> Self {
        let value = value.chars().take(64).collect();
        Self { name: name.to_owned(), value, why: why.into() }
    }
}

impl fmt::Display for InvalidSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {:?}: {}", self.name, self.value, self.why)
    }
}

/// All that is wrong with the settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsError(pub Vec<InvalidSetting>);

impl std::error::Error for SettingsError {}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the settings cannot be followed: ")?;
        for (n, fault) in self.0.iter().enumerate() {
            let comma = if n == 0 { "" } else { "; " };
            write!(f, "{comma}{fault}")?;
        }
        Ok(())
    }
}
