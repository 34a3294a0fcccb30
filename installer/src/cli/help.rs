//! What `gybe` prints about itself: the grouped list of commands, the version, completion scripts and
//! man pages. All of it is made from the commands' own definitions.

use super::output::{CommandError, CommandOutput};
use super::style::heading;
use anstream::adapter::strip_str;
use clap::{Args, Command, ValueEnum};
use serde_json::json;
use std::io;
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
        let commands: Vec<Command> =
            command.get_subcommands().filter(|one| !one.is_hide_set()).cloned().collect();
        let pages = commands.len();
        let write = |command: Command| {
            let name = command.get_display_name().unwrap_or_else(|| command.get_name());
            std::fs::write(directory.join(format!("{name}.1")), man_page(command)?)
        };
        std::fs::create_dir_all(directory)
            .and_then(|()| commands.into_iter().chain([command]).try_for_each(write))
            .map_err(|why| {
                CommandError::because(format!("cannot write man pages to {}", directory.display()), why)
            })?;
        let text = format!("wrote man pages of gybe and {pages} commands to {}\n", directory.display());
        Ok(CommandOutput::done(text, json!({ "directory": directory, "commands": pages })))
    }
}

/// Returns the man page of a command that has been built. clap's own synopsis has options without their values.
fn man_page(command: Command) -> io::Result<Vec<u8>> {
    let synopsis = synopsis(&command).replace('-', "\\-");
    let has_options = command.get_arguments().any(|arg| !arg.is_hide_set());
    let (has_commands, has_extra) = (command.has_subcommands(), command.get_after_help().is_some());
    let has_version = command.get_version().is_some();
    let (man, mut page) = (clap_mangen::Man::new(command), Vec::new());
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    page.extend(format!(".SH SYNOPSIS\n{synopsis}\n").bytes());
    man.render_description_section(&mut page)?;
    if has_options {
        man.render_options_section(&mut page)?;
    }
    if has_commands {
        man.render_subcommands_section(&mut page)?;
    }
    if has_extra {
        man.render_extra_section(&mut page)?;
    }
    if has_version {
        man.render_version_section(&mut page)?;
    }
    Ok(page)
}

/// Returns the usage with every option and its value.
fn synopsis(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim();
    let optional =
        command.get_opts().chain(command.get_arguments().filter(|arg| !arg.get_action().takes_values()));
    let options: Vec<String> = optional
        .filter(|arg| !arg.is_hide_set())
        .filter_map(|arg| {
            let long = format!("--{}", arg.get_long()?);
            let values: String =
                arg.get_value_names().into_iter().flatten().map(|name| format!(" <{name}>")).collect();
            let values = if arg.get_action().takes_values() { values } else { String::new() };
            let is_named = usage.split(['<', '|', ' ', '>', '[']).any(|word| word == long);
            (!is_named).then(|| format!("[{long}{values}]"))
        })
        .collect();
    usage.replace("[OPTIONS]", &options.join(" "))
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
    fn the_synopsis_of_a_man_page_has_every_option_with_its_value() {
        let mut command = crate::cli::command().disable_help_subcommand(true);
        command.build();
        for one in command.get_subcommands().chain([&command]) {
            let synopsis = synopsis(one);
            assert!(!synopsis.contains("[OPTIONS]"), "{synopsis}");
            for arg in one.get_opts().filter(|arg| !arg.is_hide_set()) {
                let long = format!("--{} ", arg.get_long().unwrap());
                let values = if arg.get_num_args().is_some_and(|n| n.min_values() == 0) { "" } else { "<" };
                assert!(
                    synopsis.contains(&format!("{long}{values}")) || values.is_empty(),
                    "{long}: {synopsis}"
                );
            }
        }
        let trace = command.find_subcommand("trace").unwrap().clone();
        assert!(synopsis(&trace).starts_with("gybe trace "), "{}", synopsis(&trace));
        let page = String::from_utf8(man_page(trace).unwrap()).unwrap();
        assert!(page.contains("[\\-\\-pod <FILE>]") && page.contains("<tcp|udp> <ADDRESS:PORT>\n"), "{page}");
    }

    #[test]
    fn no_word_of_the_help_is_broken_on_a_terminal_of_80_columns() {
        let mut command = crate::cli::command().term_width(80);
        command.build();
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        for one in command.get_subcommands().filter(|one| one.get_name() != "help") {
            let [narrow, wide] =
                [80, 1000].map(|width| one.clone().term_width(width).render_long_help().to_string());
            assert_eq!(words(&narrow), words(&wide), "{}", one.get_name());
            assert!(!narrow.contains("\\n"), "{narrow}");
        }
        // The exit codes are set in lines here, not by clap.
        let after = command.get_after_help().unwrap().to_string();
        assert_eq!(after.lines().find(|line| line.chars().count() > 80), None, "{after}");
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
