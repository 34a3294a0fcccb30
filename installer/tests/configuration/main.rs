//! What operators and pods configure: settings in the environment and the ConfigMap with the desired state that results
//! from them, policy files, manifests, explanations of pods, and the arguments of `istio-iptables`.
#![cfg(test)]

mod annotations;
mod desired_state;
mod explanations;
mod files;
mod init_arguments;
mod setting_names;
mod setting_values;

use gybe_installer::host::settings::{Settings, SettingsSources};

pub(crate) type Pairs<'a> = &'a [(&'a str, &'a str)];

/// Settings from these environment variables and these files of the ConfigMap.
pub(crate) fn sources(environment: Pairs<'_>, files: Pairs<'_>) -> SettingsSources {
    let owned = |pairs: Pairs<'_>| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    SettingsSources { environment: owned(environment), files: owned(files), network_config: None }
}

pub(crate) fn read(environment: Pairs<'_>, files: Pairs<'_>) -> Settings {
    Settings::read(&sources(environment, files)).unwrap_or_else(|why| panic!("{why}"))
}

pub(crate) fn refused(environment: Pairs<'_>, files: Pairs<'_>) -> String {
    match Settings::read(&sources(environment, files)) {
        Ok(settings) => panic!("{environment:?} {files:?}: {settings:?}"),
        Err(why) => why.to_string(),
    }
}
