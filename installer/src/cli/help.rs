//! What `gybe` prints about itself: the grouped list of commands, the version, completion scripts and
//! man pages. All of it is made from the commands' own definitions.

use super::output::{CommandError, CommandOutput};
use super::style::heading;
use anstream::adapter::strip_str;
use clap::{Args, Command, ValueEnum};
use serde_json::json;
use std::path::PathBuf;

/// Every command, in the order and under the heading in which `gybe --help` lists it.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Cluster", &["status", "leave"]),
    (
        "Node",
        &[
            "install",
            "uninstall",
            "doctor",
            "repair",
            "migrate",
            "probe",
            "node",
            "agent-status",
            "support-bundle",
            "istio-cni-taint",
        ],
    ),
    ("Network namespace", &["apply", "verify", "inspect", "trace", "remove", "render"]),
    ("Pod", &["explain"]),
    ("Pod (run inside it)", &["init", "validate"]),
    ("Other", &["pod-facts", "version", "completion", "man", "help"]),
];

/// Returns `command` with its sub-commands listed in groups.
pub(super) fn grouped(command: Command) -> Command {
    let names = GROUPS.iter().flat_map(|(_, names)| names.iter());
    let mut list = command.clone().help_template("{subcommands}");
    for (position, name) in names.enumerate().filter(|(_, name)| **name != "help") {
        list = list.mut_subcommand(name, |one| one.display_order(position));
    }
    let list = list.render_help().ansi().to_string();
    let mut text = String::new();
    for line in list.lines() {
        let plain = strip_str(line).to_string();
        // A line that continues a description is indented further than a name.
        let name = plain.strip_prefix("  ").filter(|rest| !rest.starts_with(' '));
        let name = name.and_then(|rest| rest.split_whitespace().next());
        if let Some((group, _)) = GROUPS.iter().find(|(_, names)| names.first().copied() == name) {
            text += &format!("\n{}\n", heading(&format!("{group}:")));
        }
        text += line;
        text.push('\n');
    }
    let options = heading("Options:");
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{text}\n{options}\n{{options}}{{after-help}}"
    ))
}

/// Print the version of gybe
#[derive(Debug, Args)]
#[command(after_help = super::style::examples(&["gybe version", "gybe version --json"]))]
pub(super) struct VersionArgs;

impl VersionArgs {
    pub(super) fn run(&self) -> CommandOutput {
        let version = env!("CARGO_PKG_VERSION");
        CommandOutput::done(format!("gybe {version}\n"), json!({ "name": "gybe", "version": version }))
    }
}

/// Print a script that completes gybe's commands and flags in a shell
#[derive(Debug, Args)]
#[command(after_help = super::style::examples(&[
    "source <(gybe completion bash)",
    "gybe completion zsh > \"${fpath[1]}/_gybe\"",
    "gybe completion fish > ~/.config/fish/completions/gybe.fish",
]))]
pub(super) struct CompletionArgs {
    /// bash, zsh or fish
    #[arg(value_name = "SHELL", hide_possible_values = true)]
    shell: Shell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl CompletionArgs {
    pub(super) fn run(&self, mut command: Command) -> Result<CommandOutput, CommandError> {
        let shell = match self.shell {
            Shell::Bash => clap_complete::Shell::Bash,
            Shell::Zsh => clap_complete::Shell::Zsh,
            Shell::Fish => clap_complete::Shell::Fish,
        };
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command, "gybe", &mut script);
        let script = String::from_utf8(script)
            .map_err(|why| CommandError::because("cannot generate the completion script", why))?;
        let json = json!({ "script": script });
        Ok(CommandOutput::done(script, json))
    }
}

/// Write a man page for each command into a directory
#[derive(Debug, Args)]
#[command(after_help = super::style::examples(&["gybe man /usr/local/share/man/man1"]))]
pub(super) struct ManArgs {
    /// The directory, which is created if it does not exist
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl ManArgs {
    pub(super) fn run(&self, mut command: Command) -> Result<CommandOutput, CommandError> {
        let directory = &self.directory;
        // `gybe help COMMAND` prints the same page.
        command = command.disable_help_subcommand(true);
        command.build();
        let pages = command.get_subcommands().filter(|one| !one.is_hide_set()).count();
        std::fs::create_dir_all(directory)
            .and_then(|()| clap_mangen::generate_to(command, directory))
            .map_err(|why| {
                CommandError::because(format!("cannot write man pages to {}", directory.display()), why)
            })?;
        let text = format!("wrote man pages of gybe and {pages} commands to {}\n", directory.display());
        Ok(CommandOutput::done(text, json!({ "directory": directory, "commands": pages })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_group_of_the_help() {
        let mut command = crate::cli::command();
        command.build();
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let mut commands: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        listed.sort_unstable();
        commands.sort_unstable();
        assert_eq!(listed, commands);
        let help = command.render_help().to_string();
        for (group, names) in GROUPS {
            let (_, below) = help.split_once(&format!("\n{group}:\n")).unwrap();
            let below = below.split("\n\n").next().unwrap();
            for name in names {
                assert!(
                    below.lines().any(|line| line.starts_with(&format!("  {name} "))),
                    "{group} {name}: {help}"
                );
            }
        }
    }

    #[test]
    fn every_command_has_examples_and_no_line_of_help_is_longer_than_100_columns() {
        let mut command = crate::cli::command();
        command.build();
        for one in command.get_subcommands_mut().filter(|one| one.get_name() != "help") {
            let help = one.render_long_help().to_string();
            assert!(help.contains("Examples:\n  "), "{}", one.get_name());
            let long = help.lines().find(|line| line.chars().count() > 100);
            assert_eq!(long, None, "{}", one.get_name());
        }
        let help = command.render_long_help().to_string();
        assert_eq!(help.lines().find(|line| line.chars().count() > 100), None, "{help}");
    }
}
