//! The tables in docs/CONFIGURE.md are those of the code.

use crate::annotations::INVALID_VALUES;
use gybe_installer::host::settings::{INCUMBENTS, KEYS, OURS, Support};
use gybe_plugin::annotations::{ANNOTATIONS, ValueForm};
use std::fs;

const PAGE: &str = "../docs/CONFIGURE.md";

/// Keeps the tables of names in the code and in docs/CONFIGURE.md equal; with GYBE_WRITE=1 writes the page.
#[test]
fn docs_configure_has_the_tables_of_the_code() {
    let mut page = fs::read_to_string(PAGE).unwrap();
    for rows in
        [&KEYS[..], &OURS, &INCUMBENTS].map(settings).into_iter().chain([annotations(), invalid_values()])
    {
        // The table begins with its first cell and ends with a line that is no row.
        let first = rows[0].split(" | ").next().unwrap();
        let start =
            page.find(&format!("\n{first} |")).unwrap_or_else(|| panic!("{PAGE} has no row {first}")) + 1;
        let table = page[start..].split_inclusive('\n').take_while(|line| line.starts_with('|'));
        let end = start + table.map(str::len).sum::<usize>();
        page.replace_range(start..end, &rows.concat());
    }
    if std::env::var_os("GYBE_WRITE").is_some() {
        fs::write(PAGE, &page).unwrap();
    }
    let written = fs::read_to_string(PAGE).unwrap();
    let differing = page.lines().zip(written.lines()).find(|(new, old)| new != old);
    assert!(page == written, "{PAGE} differs; with GYBE_WRITE=1 this test writes it: {differing:?}");
}

fn settings(names: &[gybe_installer::host::settings::SettingName]) -> Vec<String> {
    let rows = names.iter().map(|name| {
        let effect = match name.support {
            Support::Honoured => "",
            Support::RefusedIfTrue => "refused if true: ",
            Support::Refused => "refused: ",
            Support::Ignored => "no effect: ",
        };
        format!("| `{}` | {} | {effect}{} |\n", name.name, name.default, name.meaning)
    });
    rows.collect()
}

fn annotations() -> Vec<String> {
    let rows = ANNOTATIONS.iter().map(|annotation| {
        let default = match annotation.default {
            None => "–".to_owned(),
            Some("") => "none".to_owned(),
            Some(value) => format!("`{value}`"),
        };
        let form = match annotation.form {
            ValueForm::Text => "any text",
            ValueForm::Boolean => "`true` or `false`",
            ValueForm::Mode => "`REDIRECT`, `TPROXY` or `NONE`",
            ValueForm::Ports => "ports",
            ValueForm::PortsOrAll => "`*`, or ports",
            ValueForm::Networks => "networks",
            ValueForm::NetworksOrAll => "`*`, or networks",
            ValueForm::Interfaces => "interfaces",
        };
        format!("| `{}` | {default} | {form} | {} |\n", annotation.name, annotation.meaning)
    });
    rows.collect()
}

fn invalid_values() -> Vec<String> {
    let rows = INVALID_VALUES.iter().map(|invalid| {
        format!("| {} | {} | {} |\n", invalid.form, invalid.text(), invalid.error().replace('|', "\\|"))
    });
    rows.collect()
}
