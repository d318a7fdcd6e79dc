-- Further names of functions' models. The function's record has them, too; here each is unique.
CREATE TABLE aliases (
    namespace TEXT NOT NULL,
    alias TEXT NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (namespace, alias)
) WITHOUT ROWID;
