//! The page of options says what the program does.

use std::fs;
use std::path::Path;

fn page() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md")).unwrap()
}

#[test]
fn the_tables_of_the_page_are_those_of_the_program() {
    let page = page();
    let (_, tables) = page.split_once("written by `cargo xtask docs`. -->\n").expect("the page has no marker");
    assert!(tables == tenure_config::reference(), "run `cargo xtask docs` to write docs/configuration.md anew");
}

#[test]
fn the_messages_on_the_page_are_those_of_the_program() {
    let folder = std::env::temp_dir().join(format!("tenure-config-page-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("tenure.toml"), "# five\n# lines\n\n[tubes]\nlisen = \"127.0.0.1:1\"\nsync = 50\n").unwrap();
    let options = tenure_config::LoadOptions {
        explicit: Some("tenure.toml".into()),
        environment: [],
        folder: folder.clone(),
        system_file: "/nonexistent".into(),
    };
    let error = tenure_config::load(options).unwrap_err();
    fs::remove_dir_all(&folder).unwrap();
    for line in error.to_string().lines() {
        assert!(page().contains(&format!("      {line}\n")), "{line}");
    }
}
