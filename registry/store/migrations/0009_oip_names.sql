-- Names of functions' models in the Open Inference Protocol. The function's record has its name, too;
-- here each is unique. No function's own name is that of another function's model.
CREATE TABLE oip_names (
    namespace TEXT NOT NULL,
    oip_name TEXT NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (namespace, oip_name)
) WITHOUT ROWID;
