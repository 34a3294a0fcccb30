//! The commands in the documentation: the lines of the `sh` blocks in README.md and docs/.

/// Lines that do not run on a single node: how they begin, and where they run or what they need.
pub const ELSEWHERE: &[(&str, &str)] = &[
    ("make demo", "a step of .ci/run"),
    ("make test ", "a step of .ci/run"),
    (
        "make -C integration existing",
        "a cluster that can pull the image from a registry; in make -C integration mesh, without the registry",
    ),
    ("skopeo ", "a registry"),
    ("make bench", "a benchmark needs a quiet machine"),
    ("make -C integration bench", "a benchmark needs a quiet machine"),
    ("helm ", "a cluster that can pull the image from a registry"),
    ("kubectl create namespace", "as helm"),
    ("kubectl label namespace", "as helm"),
    ("kubectl ", IN_A_CLUSTER),
    ("gybe leave", IN_A_CLUSTER),
];

/// Where the lines run that need a cluster.
pub const IN_A_CLUSTER: &str = "make -C integration cluster";

/// Returns where a command runs that does not run on a single node.
#[must_use]
pub fn elsewhere(command: &str) -> Option<&'static str> {
    ELSEWHERE.iter().find(|(start, _)| command.starts_with(start)).map(|(_, place)| *place)
}

/// Returns the lines of a page's `sh` blocks, without comments; a here-document is one line.
#[must_use]
pub fn commands(page: &str) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let (mut is_in_block, mut end_of_document) = (false, None::<String>);
    for line in page.lines() {
        if let (Some(end), Some(command)) = (&end_of_document, commands.last_mut()) {
            command.push('\n');
            command.push_str(line);
            if line == end {
                end_of_document = None;
            }
        } else if line.starts_with("```") {
            is_in_block = line == "```sh";
        } else if is_in_block && !line.trim().is_empty() {
            end_of_document = line.split_once("<<'").map(|(_, rest)| rest.trim_end_matches('\'').to_owned());
            commands.push(line.to_owned());
        }
    }
    commands
}
