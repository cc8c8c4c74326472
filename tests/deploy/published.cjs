// Validates resources, a JSON list on the standard input, against the schemas that their projects publish, as npm has
// them below a folder. Prints what is wrong with each, empty where nothing is.
const {readFileSync} = require("fs");
const [folder, packages] = process.argv.slice(2);
const homes = JSON.parse(packages);
const told = JSON.parse(readFileSync(0, "utf8")).map((resource) => {
  const home = homes[resource.apiVersion.split("/")[0]];
  const Model = require(`${folder}/${home}/${resource.apiVersion}/${resource.kind}`)[resource.kind];
  try {
    new Model(resource).validate();
    return "";
  } catch (error) {
    return error.message || String(error);
  }
});
console.log(JSON.stringify(told));
