//! The page of options, made from the table of options.

use std::fmt::Write as _;

use crate::options::options;

/// One Markdown table per section, in the order of the options.
#[must_use]
pub fn reference() -> String {
    let mut text = String::new();
    let mut current = Some("none yet");
    for option in options() {
        let (section, name) = option.section_and_name();
        if section != current {
            current = section;
            let heading = section.map_or("Outside all sections".to_owned(), |section| format!("`[{section}]`"));
            let _ = write!(
                text,
                "\n### {heading}\n\n| key | value | default | variable | reloaded | meaning |\n|---|---|---|---|---|---|\n"
            );
        }
        let _ = writeln!(
            text,
            "| `{name}` | {} | {} | `{}` | {} | {} |",
            option.kind,
            option.default.map_or("not set".to_owned(), |default| format!("`{default}`")),
            option.variable(),
            if option.reloaded { "yes" } else { "no" },
            option.about,
        );
    }
    text
}
