//! Tables on a terminal.

/// A column: its head, and its cell of a row.
pub type Column<'a, R> = (&'a str, &'a dyn Fn(&R) -> String);

/// Rows in columns of the needed width; numbers right-aligned.
pub fn table<R>(columns: &[Column<'_, R>], rows: &[R]) -> String {
    let heads = columns.iter().map(|(head, _)| (*head).to_owned()).collect();
    let cells = |row: &R| columns.iter().map(|(_, cell)| cell(row)).collect();
    let mut lines: Vec<Vec<String>> = vec![heads];
    lines.extend(rows.iter().map(cells));
    let is_number = |cell: &str| cell == "-" || cell.parse::<f64>().is_ok();
    let is_right = |column: usize| {
        let mut cells = lines[1..].iter().map(|line| &line[column]);
        !rows.is_empty() && cells.all(|cell| is_number(cell))
    };
    aligned(&lines, is_right)
}

/// Lines of cells, in columns of the needed width.
pub fn aligned(lines: &[Vec<String>], is_right: impl Fn(usize) -> bool) -> String {
    let width = |column: usize| {
        let widths = lines.iter().map(|line| line[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let columns = 0..lines.first().map_or(0, Vec::len);
    let columns: Vec<_> = columns.map(|it| (width(it), is_right(it))).collect();
    let line = |cells: &Vec<String>| {
        let cells = cells.iter().zip(&columns);
        let cells = cells.map(|(cell, &(width, is_right))| match is_right {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        format!("{}\n", line.trim_end())
    };
    lines.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_need_to_be_and_numbers_stand_to_the_right() {
        let columns: [Column<'_, (&str, &str)>; 2] = [
            ("name", &|it| it.0.to_owned()),
            ("n", &|it| it.1.to_owned()),
        ];
        assert_eq!(
            table(&columns, &[("größe", "7"), ("x", "1000")]),
            "name      n\ngröße     7\nx      1000\n"
        );
        assert_eq!(table(&columns, &[]), "name  n\n");
    }
}
