//! Writes the manual pages and the completions of the packages, from the definitions of the command lines.
//!
//!     cargo run --example manual -- FOLDER
//!
//! FOLDER gets `man/tidegate.1`, a page for every command below it, and `completions/`. This is a program of its own, so
//! that the product carries nothing of it.

#![allow(
    clippy::disallowed_methods,
    reason = "a tool of the build serves no calls"
)]

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs, io};

use clap::Command;
use clap_complete::{Shell, generate_to};
use clap_mangen::Man;

/// The shells with completions.
pub(crate) const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

/// The programs of the packages.
pub(crate) fn programs() -> [Command; 3] {
    let lab = tidegate_lab::cli::definition();
    let leases = tidegate_lease_server::cli::definition();
    let mut tidegate = tidegate::cli::definition();
    // `tidegate` passes the arguments of these on unread. Their options are those of the other programs.
    let of_lab = lab.get_subcommands().cloned();
    let of_leases = [("server", "lease-server"), ("agent", "lease-agent")].map(|(own, name)| {
        let options = leases.find_subcommand(own).expect("a command of both");
        options.clone().name(name)
    });
    for options in of_lab.chain(of_leases) {
        let name = options.get_name().to_owned();
        if let Some(named) = tidegate.find_subcommand(&name) {
            let options = options.display_order(named.get_display_order());
            tidegate = tidegate.mut_subcommand(&name, |_| options);
        }
    }
    [tidegate, lab, leases]
}

/// Writes every page and every completion below the folder.
pub(crate) fn write(folder: &Path) -> io::Result<()> {
    let pages = folder.join("man");
    let completions = folder.join("completions");
    fs::create_dir_all(&pages)?;
    fs::create_dir_all(&completions)?;
    for program in programs() {
        let name = program.get_name().to_owned();
        for shell in SHELLS {
            generate_to(shell, &mut program.clone(), &name, &completions)?;
        }
        let version = program.get_version().unwrap_or_default().to_owned();
        let mut program = program.disable_help_subcommand(true);
        program.build();
        write_pages(program, &format!("{name} {version}"), &pages)?;
    }
    Ok(())
}

/// Writes the page of a command, and those of the commands below it.
fn write_pages(command: Command, source: &str, folder: &Path) -> io::Result<()> {
    for below in command.get_subcommands() {
        write_pages(below.clone(), source, folder)?;
    }
    let name = command.get_display_name().unwrap_or(command.get_name());
    let name = name.to_owned();
    let page = folder.join(format!("{name}.1"));
    let mut text = Vec::new();
    Man::new(command)
        .title(name.to_uppercase())
        .source(source)
        .manual("Tidegate")
        .render(&mut text)?;
    text.extend(match name == "tidegate" {
        true => FILES.as_bytes(),
        false => b".SH \"SEE ALSO\"\n.BR tidegate (1)\n",
    });
    fs::write(page, text)
}

const FILES: &str = r#".SH FILES
.TP
.I /etc/tidegate/config.toml
The config of
.BR "tidegate serve" .
The options that most configs have are in
.IR /usr/share/doc/tidegate/config.toml.example ,
and all of them in
.IR /usr/share/doc/tidegate/docs/reference/options.md .
.TP
.I /etc/tidegate/environment
Environment variables of the service, such as the admin token.
.TP
.I /var/lib/tidegate
What the service keeps over a restart, if its config asks for it.
.TP
.I /run/tidegate
Socket files, and the admin address for
.BR "tidegate healthcheck" .
"#;

fn main() -> ExitCode {
    let Some(folder) = env::args_os().nth(1) else {
        eprintln!("usage: manual FOLDER");
        return ExitCode::from(2);
    };
    match write(Path::new(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!(
                "cannot write the manual pages in {}: {error}",
                folder.display()
            );
            ExitCode::FAILURE
        }
    }
}
