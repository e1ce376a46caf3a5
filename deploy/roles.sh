#!/bin/sh
# Run once by the PostgreSQL image, when its data directory is new: the role of the nodes beside the owner.
set -eu
psql --set=ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" --set=password="$NODE_PASSWORD" <<'SQL'
CREATE ROLE unisono_node LOGIN PASSWORD :'password';
SQL
