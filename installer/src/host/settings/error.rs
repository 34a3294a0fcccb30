//! Invalid settings, all reported in one message.

use std::fmt;

/// One invalid setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidSetting {
    /// The variable, or the ConfigMap's key.
    pub name: String,
    /// Its value, truncated to 64 characters.
    pub value: String,
    /// What is valid, or what replaces the setting.
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

/// All invalid settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsError(pub Vec<InvalidSetting>);

impl std::error::Error for SettingsError {}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid settings: ")?;
        for (n, fault) in self.0.iter().enumerate() {
            let comma = if n == 0 { "" } else { "; " };
            write!(f, "{comma}{fault}")?;
        }
        Ok(())
    }
}
