//! Prints the tables of `docs/configuration.md`; `cargo xtask docs` puts them there.

fn main() {
    print!("{}", tenure_config::reference());
}
